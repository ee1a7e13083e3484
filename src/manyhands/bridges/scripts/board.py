"""What every rank of a script says of itself while it runs, in memory that the caller sees: one row per rank.

A rank writes its own row (a plain store, tens of nanoseconds) and the caller reads all of them. So the figures of a
rank that was killed are known up to its last whole step.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time

from ...record.clock import BEAT_CELLS, BEAT_PHASE, BEAT_SINCE, BEAT_STEP
from ...record.run import PHASES

STEPS, SAMPLES, LOSS, FIRST, EVALUATION, TOTALS = range(BEAT_CELLS, BEAT_CELLS + 6)
ROW = TOTALS + len(PHASES)
PHASE_NAMES = (*PHASES, "evaluation", "start-up", "end")
EVALUATING, STARTING, ENDED = range(len(PHASES), len(PHASE_NAMES))
UNKNOWN = -1


class Board:
    """The rows of all ranks. The first cells of a row are those of every clock's heartbeat; then

    STEPS, SAMPLES  of whole steps (UNKNOWN: batches whose size cannot be told)     LOSS  of the last one, a float
    FIRST  when the first step began     EVALUATION  nanoseconds     TOTALS...  nanoseconds in every phase
    """

    def __init__(self, ranks: int, fd: int | None = None):
        self.ranks = ranks
        self.fd = _unnamed_file() if fd is None else fd
        size = ranks * ROW * 8
        if fd is None:
            os.ftruncate(self.fd, size)
        self._memory = mmap.mmap(self.fd, size)
        self._cells = memoryview(self._memory).cast("q")
        self._floats = memoryview(self._memory).cast("d")
        if fd is None:
            for rank in range(ranks):
                row = self.row(rank)
                row[BEAT_PHASE], row[BEAT_SINCE] = STARTING, time.monotonic_ns()
                self.floats(rank)[LOSS] = float("nan")

    def __del__(self) -> None:
        os.close(self.fd)

    def row(self, rank: int) -> memoryview:
        return self._cells[rank * ROW : (rank + 1) * ROW]

    def floats(self, rank: int) -> memoryview[float]:
        """The same row, read as floats."""
        return self._floats[rank * ROW : (rank + 1) * ROW]

    def where(self, rank: int) -> tuple[int, str]:
        """The step (from one) and the phase that a rank is in."""
        row = self.row(rank)
        number = row[BEAT_PHASE]
        return row[BEAT_STEP], PHASE_NAMES[number] if 0 <= number < len(PHASE_NAMES) else "other"


def _unnamed_file() -> int:
    """A file that is gone with the last process that holds it."""
    fd, path = tempfile.mkstemp(prefix="manyhands-")
    os.unlink(path)
    return fd
