"""alone(): what the whole process shares is used by one thread at a time, so that fits may run in several.

The random generators, torch's number of threads, the functions of torch that are patched while a model is traced
and the table of modules are the process's. Whoever sets them for a moment, or depends on them, does so in here:
building a job under its seed, tracing, opening a task file, packing and opening parcels (functions travel by name,
and a patched one must not be met).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_turn = threading.RLock()  # what runs alone may call what runs alone


@contextmanager
def alone() -> Iterator[None]:
    """Wait until no other thread of this process is in here."""
    with _turn:
        yield


def _forked() -> None:
    global _turn
    _turn = threading.RLock()  # the thread that held it may not exist in this child


os.register_at_fork(after_in_child=_forked)
