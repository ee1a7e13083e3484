"""Heartbeats: the step and phase of every rank, in memory that all ranks and the caller see.

One row of 64-bit numbers a rank. A rank writes its own row (a plain store, tens of nanoseconds), everyone
may read all rows. This is how a dead rank's last step and phase are known, how a stalled one is named, and
how a rank learns how long the others had been waiting for it at a synchronisation point.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass

from ...errors import Kind, RankFailed
from ...record.clock import BEAT_CELLS, BEAT_PHASE, BEAT_SINCE, BEAT_STEP
from ...record.run import PHASES
from ..shared_memory import anonymous_file, map_file
from .process_lock import BOARD_BYTE, ProcessLock
from .waiting import PATIENCE

# The cells of a row. The first ones are written by the rank's clock; then
#   LOST      0, or the first share that a dead rank left undone
#   FINISHED  the last step a rank has done       SAMPLES  those whose gradients it has written in this launch
#   MET       how often it came to `meet`         FIRST    its first step in this launch: up to it compilers are at work
#   OWN       the last step of the epoch that a rank makes itself, which may be before the epoch's LAST
#   ARRIVED   the first of a ring of arrival times at synchronisation points
STEP, PHASE, SINCE = BEAT_STEP, BEAT_PHASE, BEAT_SINCE
LOST, DONE, PID, FINISHED, MET, SAMPLES, FIRST, OWN, LAST, ARRIVED = range(BEAT_CELLS, BEAT_CELLS + 10)
ARRIVALS = 16  # ranks are never further apart than this at synchronisation points
ROW = -(-(ARRIVED + ARRIVALS) // 8) * 8  # whole cache lines
NEAR = 8  # steps: this close to its end a rank asks under the lock whether a step is still its own
BEGUN = 2  # steps that a rank may have in hand: these are not taken from it
BURY_SECONDS = 5.0  # the caller waits no longer for the lock: it is held for microseconds, unless its holder is stopped
_CONTROL = 8  # numbers before the first row
_STOP_AFTER, _RANKS, _CHECKPOINT_AFTER = 0, 1, 2
PHASE_NAMES = (*PHASES, "evaluation", "start-up", "checkpoint", "end")
_BEFORE_WRITING = ("load", "transfer", "augment", "forward", "backward")
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

    def __init__(
        self,
        processes: int,
        fd: int | None = None,
        ranks: int | None = None,
        own: range | None = None,
        host: str | None = None,
    ):
        self.processes = processes
        self.own = range(processes) if own is None else own  # those on this host: only they write here
        self.host = host  # its name, where there are several
        self.fd = anonymous_file((_CONTROL + processes * ROW) * 8, "manyhands-board") if fd is None else fd
        self._memory = map_file(self.fd, shared=True)
        self._cells = memoryview(self._memory).cast("q")
        self._lock = ProcessLock(self.fd, BOARD_BYTE)
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

    def host_of(self, rank: int) -> str | None:
        """Where it runs, if there are several hosts."""
        return self.host

    def pid(self, rank: int) -> int:
        return int(self.row(rank)[PID])

    @property
    def ranks(self) -> int:
        """How many of the processes train; the rest serve."""
        return int(self._cells[_RANKS])

    # ------------------------------------------------------------ agreeing on a step

    def locked(self, patience: float = PATIENCE) -> AbstractContextManager[None]:
        """One process at a time; the kernel frees the lock of a process that dies."""
        return self._lock.held(patience)

    def finish(self, rank: int, step: int, samples: int | None = None) -> None:
        """Say that a step is done; call it under the lock where others choose a common step from it."""
        row = self.row(rank)
        row[FINISHED] = step
        if samples is not None:
            row[SAMPLES] = samples

    def first_common(self, rank: int, step: int) -> int:
        """The first step after which every process can still pause together.

        To be called under the lock, by one that has finished `step`.
        """
        others = [self.row(other) for other in range(self.processes) if other != rank]
        furthest = max((row[FINISHED] for row in others if not row[LOST]), default=-1)
        return step if furthest < step else furthest + 1

    # ------------------------------------------------------------ going on without the dead

    def living(self) -> list[int]:
        """The ranks that train and have not died."""
        return [rank for rank in range(self.ranks) if not self.row(rank)[LOST]]

    @property
    def leader(self) -> int:
        """The first rank that lives."""
        return next((rank for rank in range(self.processes) if not self.row(rank)[LOST]), 0)

    def meet(self, rank: int) -> None:
        """Wait until every living process is here; a dead one is not waited for once the caller has buried it."""
        own = self.row(rank)
        own[MET] += 1
        others = [self.row(other) for other in range(self.processes) if other != rank]
        pause = 5e-5
        while any(row[MET] < own[MET] and not row[LOST] for row in others):
            time.sleep(pause)
            pause = min(pause * 1.5, 2e-3)

    def bury(self, rank: int) -> None:
        """The caller's word that a rank is dead. Its share from here on is for others to claim.

        A step it had not finished is claimed too if its gradient was not complete; where it may be in the weights
        already, it is given up: a sample is used once or not at all.
        """
        with self.locked(BURY_SECONDS):
            row = self.row(rank)
            unwritten = row[STEP] > row[FINISHED] and self.beat(rank).phase in _BEFORE_WRITING
            row[LOST] = row[STEP] if unwritten else max(row[STEP], row[FINISHED], 0) + 1

    def claim(self, upto: int, most: int) -> list[tuple[int, int]]:
        """Up to `most` shares (rank, step) that dead ranks left undone up to step `upto`; each is given out once."""
        claimed: list[tuple[int, int]] = []
        with self.locked():
            for rank in range(self.ranks):
                row = self.row(rank)
                while row[LOST] and len(claimed) < most:
                    if row[OWN] < row[LOST] <= row[LAST]:
                        row[LOST] = row[LAST] + 1  # the rest of that epoch had been taken from it before it died
                    if row[LOST] > upto:
                        break
                    claimed.append((rank, row[LOST]))
                    row[LOST] += 1
        return claimed

    # ------------------------------------------------------------ helping those behind

    def plan(self, rank: int, last: int) -> None:
        """A rank's epoch ends with step `last`; call it before the ranks meet to begin it."""
        row = self.row(rank)
        row[OWN] = row[LAST] = last

    def keep(self, rank: int, step: int) -> bool:
        """Whether a rank may make its own share of the step that it has just said it is in.

        Far from its end it may without asking: shares go one by one, from the last, each under the lock.
        """
        row = self.row(rank)
        if step + NEAR <= row[OWN]:
            return True
        with self.locked():
            return bool(step <= row[OWN])

    def take(self, upto: int, dead: bool) -> tuple[int, int] | None:
        """A share (rank, step) to make for another rank: one that the dead left, or the last of who is furthest behind."""
        if dead and self.anyone_lost and (claimed := self.claim(upto, 1)):
            return claimed[0]
        with self.locked():
            left, rank = max((self.row(rank)[OWN] - self.row(rank)[STEP], rank) for rank in self.living())
            if left < BEGUN:
                return None
            row = self.row(rank)
            row[OWN] -= 1
            return rank, row[OWN] + 1

    def all_finished(self, step: int) -> bool:
        """Whether every rank has made its steps up to this one, or is dead with nothing left to claim."""
        return all(self.row(rank)[FINISHED] >= step for rank in self.living())

    def samples_of_lost(self, spoken: Collection[int]) -> int:
        """What dead ranks had done in this launch, those left out that could still say it themselves."""
        lost = [rank for rank in range(self.ranks) if self.row(rank)[LOST] and rank not in spoken]
        return sum(self.row(rank)[SAMPLES] for rank in lost)

    @property
    def anyone_lost(self) -> bool:
        return len(self.living()) < self.ranks

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


def name_of(index: int, ranks: int) -> str:
    """`rank 1`, or `server 0` for a process beyond the ranks."""
    return f"rank {index}" if index < ranks else f"server {index - ranks}"


def who(index: int, ranks: int, processes: int, host: str | None = None) -> str:
    """How messages name a process: `rank 1 of 4`, `server 0 of 2`, or `rank 3 of 4 on node7`."""
    name = f"{name_of(index, ranks)} of {ranks if index < ranks else processes - ranks}"
    return f"{name} on {host}" if host else name


def where(step: int | None, phase: str | None) -> str:
    """How messages say how far a process was."""
    if step is None or step < 1:
        return phase or "start-up"
    return f"step {step}, {phase}"


def failed_at(beat: Beat, kind: Kind, text: str) -> RankFailed:
    """The failure of a process that was last heard of there."""
    ago = beat.seconds_ago
    return RankFailed(text, rank=beat.rank, step=beat.step, phase=beat.phase, kind=kind, detected_seconds=ago)


def death(board: Board, beat: Beat, how: str) -> RankFailed:
    """The failure of a process that went away without a word."""
    name = who(beat.rank, board.ranks, board.processes, board.host)
    failure = failed_at(beat, "died", f"{name} died in {where(beat.step, beat.phase)}: {how}")
    failure.host = board.host
    return failure
