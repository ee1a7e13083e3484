"""Fits in a child that was forked after its parent had computed."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable

import pytest

import manyhands as mh
from manyhands.world.launch import processes
from tests.breakable import toy


class Launching(Exception):
    """The caller has computed what it computes itself, and would start ranks."""


def launching(*_: object) -> None:
    raise Launching


def until_the_launch() -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "ask_for_ranks", launching)
        with pytest.raises(Launching):
            mh.fit(toy(), max_steps=3, progress=False)
    return "launched"


def whole_fit() -> str:
    return str(mh.fit(toy(), max_steps=3, progress=False).weights_sha256)


@pytest.mark.filterwarnings("ignore:This process")  # is multi-threaded: newer Pythons say so, and that is the test
@pytest.mark.parametrize("train", [until_the_launch, pytest.param(whole_fit, marks=pytest.mark.soak)])
def test_a_fit_in_a_forked_child_ends(train: Callable[[], str], two_threads: None) -> None:
    """Torch's threads did not come along with the fork: the first forward pass waited for them for ever."""
    expected = train()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, train().encode())
        finally:
            os._exit(0)
    os.close(write)
    try:
        assert select.select([read], [], [], 120)[0], "the child hangs"
        assert os.read(read, 100).decode() == expected
    finally:
        os.close(read)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
