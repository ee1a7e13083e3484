"""Heartbeats: the step and phase of every rank, in memory that all ranks and the caller see.

One row of 64-bit numbers a rank. A rank writes its own row (a plain store, tens of nanoseconds), everyone
may read all rows. This is how a dead rank's last step and phase are known, how a stalled one is named, and
how a rank learns how long the others had been waiting for it at a synchronisation point.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ..measure.run import PHASES
from .memory import anonymous_file, map_file

STEP, PHASE, SINCE, LOST, DONE, PID, FINISHED, MET = range(8)
ARRIVALS = 16  # a ring of arrival times: ranks are never further apart than this at synchronisation points
ROW = 8 + ARRIVALS
_CONTROL = 8  # numbers before the first row
_STOP_AFTER, _RANKS, _CHECKPOINT_AFTER = 0, 1, 2
PHASE_NAMES = (*PHASES, "evaluation", "start-up", "checkpoint", "end")
PHASE_NUMBERS = {name: number for number, name in enumerate(PHASE_NAMES)}


@dataclass(frozen=True)
class Beat:
    """What one rank last said of itself."""

    rank: int
    step: int
    phase: str
    seconds_ago: float
    done: bool
    lost: bool = False  # died, and the others went on without it


class Board:
    """The rows of all processes of a launch, in shared memory."""

    def __init__(self, processes: int, fd: int | None = None, ranks: int | None = None):
        self.processes = processes
        self.fd = anonymous_file((_CONTROL + processes * ROW) * 8, "manyhands-board") if fd is None else fd
        self._memory = map_file(self.fd, shared=True)
        self._cells = memoryview(self._memory).cast("q")
        if fd is None:
            self._cells[_STOP_AFTER] = -1
            self._cells[_RANKS] = ranks or processes
            self._cells[_CHECKPOINT_AFTER] = -1
            for rank in range(processes):
                row = self.row(rank)
                row[STEP] = -1
                row[PHASE] = PHASE_NUMBERS["start-up"]
                row[SINCE] = time.monotonic_ns()

    def row(self, rank: int) -> memoryview:
        start = _CONTROL + rank * ROW
        return self._cells[start : start + ROW]

    def beat(self, rank: int) -> Beat:
        row = self.row(rank)
        ago = (time.monotonic_ns() - row[SINCE]) / 1e9
        phase = row[PHASE]
        name = PHASE_NAMES[phase] if 0 <= phase < len(PHASE_NAMES) else "other"
        return Beat(rank, row[STEP], name, ago, bool(row[DONE]), bool(row[LOST]))

    @property
    def ranks(self) -> int:
        """How many of the processes train; the rest serve."""
        return int(self._cells[_RANKS])

    # ------------------------------------------------------------ agreeing on a step

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time; the kernel frees the lock of a process that dies."""
        fcntl.lockf(self.fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self.fd, fcntl.LOCK_UN)

    def finish(self, rank: int, step: int) -> None:
        """Say that a step is done; call it under the lock where others choose a common step from it."""
        self.row(rank)[FINISHED] = step

    def first_common(self, rank: int, step: int) -> int:
        """The first step after which every process can still pause together; under the lock, by one that finished `step`."""
        others = [self.row(other)[FINISHED] for other in range(self.processes) if other != rank and not self.row(other)[LOST]]
        furthest = max(others, default=-1)
        return step if furthest < step else furthest + 1

    @property
    def checkpoint_after(self) -> int:
        """The step after which all processes pause for a checkpoint, or -1."""
        return int(self._cells[_CHECKPOINT_AFTER])

    @checkpoint_after.setter
    def checkpoint_after(self, step: int) -> None:
        self._cells[_CHECKPOINT_AFTER] = step

    @property
    def stop_after(self) -> int:
        """The step after which asynchronous ranks end early, or -1."""
        return int(self._cells[_STOP_AFTER])

    @stop_after.setter
    def stop_after(self, step: int) -> None:
        self._cells[_STOP_AFTER] = step


def who(index: int, ranks: int, processes: int) -> str:
    """How messages name a process: `rank 1 of 4`, or `server 0 of 2` for those beyond the ranks."""
    if index < ranks:
        return f"rank {index} of {ranks}"
    return f"server {index - ranks} of {processes - ranks}"
