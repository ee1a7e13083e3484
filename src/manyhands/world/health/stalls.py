"""Stalls: which rank has stopped, where, and who waits for whom, read from the heartbeats.

A rank that works (loads, computes, updates) for longer than the limit has stalled; one that
waits or communicates is waiting for somebody. Start-up, evaluation, checkpoints and a rank's steps up to its first may take
as long as they use a processor: compilers and large test sets are slow, not stuck. A process that was stopped by a
signal uses none and is named at once when the limit has passed, whatever it was doing.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

import psutil

from ...errors import RankFailed
from .heartbeats import FIRST, Beat, Board, failed_at, name_of
from .stacks import is_stopped

LEAST_SECONDS, STEPS = 30.0, 20  # a stall is the larger of these seconds and this many median steps
SLOW_LIMITS = 20  # times the limit, for what may be slow: idling in it, or a first step altogether
BUSY_SHARE = 0.1  # of one core: less is idling
LOOK_SECONDS, AWAY_SECONDS = 0.25, 2.0
_WAITING = ("communication", "wait")
_SLOW = ("evaluation", "start-up", "checkpoint")


class StallFinder:
    """Looks at the board a few times a second; returns the stalled rank as a failure, or nothing."""

    def __init__(
        self,
        stall_seconds: float | None = None,
        used: Callable[[Board, int], float] = lambda board, rank: processor_seconds(board.pid(rank)),
        stopped: Callable[[Board, int], bool] = lambda board, rank: is_stopped(board.pid(rank)),
    ):
        self.stall_seconds = stall_seconds
        self._used, self._stopped = used, stopped
        self._looked = time.monotonic()
        self._back = -float("inf")
        self._durations: deque[float] = deque(maxlen=101)
        self._last_step, self._last_change = -1, time.monotonic()
        self._busy: dict[int, tuple[float, float]] = {}  # rank: processor seconds, and when they last grew

    @property
    def limit(self) -> float:
        if self.stall_seconds is not None:
            return self.stall_seconds
        return max(LEAST_SECONDS, STEPS * statistics.median(self._durations)) if self._durations else LEAST_SECONDS

    def __call__(self, board: Board, now: float | None = None) -> RankFailed | None:
        now = time.monotonic() if now is None else now
        if now - self._looked < min(LOOK_SECONDS, self.limit / 4):
            return None
        if now - self._looked > AWAY_SECONDS:
            self._back = now  # nobody looked meanwhile: the caller was in a callback, or the machine asleep
        self._looked = now
        beats = [beat for beat in map(board.beat, range(board.processes)) if not beat.done and not beat.lost]
        beats = [replace(beat, seconds_ago=min(beat.seconds_ago, now - self._back)) for beat in beats]
        self._learn(beats, now)
        idle = {beat.rank: self._idle(beat, board, now) for beat in beats if beat.seconds_ago > self.limit / 4}
        quiet = [beat for beat in beats if beat.seconds_ago > self.limit]
        if not quiet:
            return None
        stopped = {beat.rank for beat in quiet if self._stopped(board, beat.rank)}
        suspects = [beat for beat in quiet if beat.rank in stopped or self._stalled(beat, board, idle[beat.rank])]
        if not suspects and len(quiet) == len(beats) and all(self._waits(beat, board) for beat in beats):
            suspects = [min(quiet, key=lambda beat: (beat.step, -beat.seconds_ago))]  # everyone waits: who is behind?
        if not suspects:
            return None
        worst = max(suspects, key=lambda beat: (beat.rank in stopped, beat.seconds_ago))
        return self._failure(worst, beats, board, worst.rank in stopped)

    def _learn(self, beats: list[Beat], now: float) -> None:
        """Step times, from how the furthest rank moves on."""
        step = max((beat.step for beat in beats), default=-1)
        if step > self._last_step:
            if self._last_step > 0:
                self._durations.append((now - self._last_change) / (step - self._last_step))
            self._last_step, self._last_change = step, now

    def _waits(self, beat: Beat, board: Board) -> bool:
        return beat.phase in _WAITING or beat.rank >= board.ranks  # a server waits for its ranks

    def _stalled(self, beat: Beat, board: Board, idle: float) -> bool:
        if self._waits(beat, board):
            return False
        if beat.phase in _SLOW:
            return idle > self.limit * SLOW_LIMITS
        if beat.step <= board.row(beat.rank)[FIRST] and beat.seconds_ago < self.limit * SLOW_LIMITS:
            return idle > self.limit / 2  # it has been watched for three quarters of the limit
        return True

    def _idle(self, beat: Beat, board: Board, now: float) -> float:
        """Seconds since a silent process and its children last used a processor noticeably."""
        used = self._used(board, beat.rank)
        before, when = self._busy.get(beat.rank, (used, now))
        if used - before > BUSY_SHARE * (now - when):
            before, when = used, now
        self._busy[beat.rank] = (before, when)
        return now - when

    def _failure(self, beat: Beat, beats: list[Beat], board: Board, stopped: bool) -> RankFailed:
        others = [other for other in beats if other.rank != beat.rank and self._waits(other, board)]
        spot = f"{beat.phase} of step {beat.step}" if beat.step > 0 and beat.phase not in _SLOW else beat.phase
        host = board.host_of(beat.rank)
        name = name_of(beat.rank, board.ranks) + (f" on {host}" if host else "")
        text = f"{name} has been in {spot} for {beat.seconds_ago:.0f} s"
        if stopped:
            text += " (its process is stopped)"
        elif beat.phase in _WAITING and len(others) + 1 == len(beats):
            text += ", and so have all others: they wait for each other"
        if others:
            verb = "waits" if len(others) == 1 else "wait"
            text += f"; {_names([other.rank for other in others], board)} {verb} for it"
            text += " in communication" if any(other.phase == "communication" for other in others) else ""
        failure = failed_at(beat, "stalled", text)
        failure.host = host
        return failure


def _names(ranks: list[int], board: Board) -> str:
    """`rank 0`, `ranks 0, 1 and 3`, `ranks 0 and 1 and server 0`."""
    trained = [str(rank) for rank in ranks if rank < board.ranks]
    parts = [name_of(rank, board.ranks) for rank in ranks if rank >= board.ranks]
    if len(trained) == 1:
        parts.insert(0, f"rank {trained[0]}")
    elif trained:
        parts.insert(0, f"ranks {', '.join(trained[:-1])} and {trained[-1]}")
    return " and ".join(parts)


def processor_seconds(pid: int) -> float:
    """What a process and its children have used so far."""
    total = 0.0
    try:
        process = psutil.Process(pid)
        for each in [process, *process.children(recursive=True)]:
            times = each.cpu_times()
            total += times.user + times.system
    except psutil.Error:
        pass
    return total
