"""Time without a core: how long a thread was ready to run while something else ran on its core (Linux tells)."""

from __future__ import annotations

import os


class Core:
    """The thread that makes it is the one that is watched. A look costs about a microsecond."""

    def __init__(self) -> None:
        try:
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._file = -1

    def nanoseconds_without(self) -> int:
        """Since the thread began; always 0 where nobody knows."""
        try:  # the file has three numbers: CPU time, time ready to run without a core, turns
            return int(os.pread(self._file, 80, 0).split()[1])
        except (OSError, ValueError, IndexError):
            return 0

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)
