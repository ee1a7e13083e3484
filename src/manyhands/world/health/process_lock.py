"""A lock between processes that the kernel takes back when its holder dies, however it dies.

It is a lock (fcntl) on one byte of a file that all ranks hold open: the heartbeat board, which has no
name in any file system. Nothing has to be made, cleaned up or recovered.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from .waiting import PATIENCE, wait_until

STRATEGY_BYTE, BOARD_BYTE, REPORT_BYTE = 0, 1, 2  # of the board's file: locks of two owners must never be one lock


class ProcessLock:
    """Mutual exclusion between the processes that hold `fd` open; threads of one process are not told apart."""

    def __init__(self, fd: int, byte: int = STRATEGY_BYTE):
        self._fd, self._byte = fd, byte

    def acquire(self, patience: float = PATIENCE) -> None:
        """Wait for the lock, at most `patience` seconds."""
        if not self.try_acquire():
            wait_until(self.try_acquire, lambda: "the lock was not released: its holder is stuck", patience)

    def try_acquire(self) -> bool:
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self._byte, os.SEEK_SET)
        except (BlockingIOError, PermissionError):  # EAGAIN or EACCES: somebody else has it
            return False
        return True

    def release(self) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, self._byte, os.SEEK_SET)

    @contextmanager
    def held(self, patience: float = PATIENCE) -> Iterator[None]:
        self.acquire(patience)
        try:
            yield
        finally:
            self.release()
