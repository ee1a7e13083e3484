"""Work in a forked child: threads do not come along with a fork, but torch goes on counting on its own.

A child forked after its parent has computed on several threads waits for ever at the first operation that wants them.
With one thread there is nobody to wait for; ranks are not the child's own threads and run as fast as ever.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from multiprocessing import parent_process
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")
_imported_in = os.getpid()


def without_lost_threads(function: Callable[P, R]) -> Callable[P, R]:
    """In a forked child run `function` with one thread of its own, and leave the number as it was."""

    @functools.wraps(function)
    def run(*positional: P.args, **named: P.kwargs) -> R:
        threads = torch.get_num_threads()
        forked = os.getpid() != _imported_in or parent_process() is not None
        if not forked or threads == 1:
            return function(*positional, **named)
        torch.set_num_threads(1)
        try:
            return function(*positional, **named)
        finally:
            torch.set_num_threads(threads)

    return run
