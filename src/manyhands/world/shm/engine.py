"""Who moves an operation forward, and how long anyone waits.

An operation is a generator: it works until it needs another rank, then yields that rank's number, and is resumed until it
ends. The same generator runs wherever there is somebody to run it:

    alone        in the call itself, while nothing else is under way: no thread is woken
    wait()       in the waiting caller's thread, together with everything else under way
    background   in a thread of the group, started the first time an operation must go on while its caller computes

Operations of one lane (all collectives; sends to one rank; receives of one tag from one rank) run in the order they were
issued; lanes do not wait for each other.

Waiting spins for a moment (only where there is a core for every rank), then gives its core away at every turn, then
sleeps. Progress renews the patience; a rank that is gone, or `timeout` seconds without progress, ends the group with an
error that names the rank, and every later call repeats it.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Callable, Hashable
from time import perf_counter, sleep
from typing import Protocol

import torch

from ...errors import PeerMissing, RankFailed
from .work import ANYONE, Counts, Work

SPINS = 1000  # about a quarter of a millisecond
YIELD_SECONDS = 0.003
BACKGROUND_YIELD_SECONDS = 0.001  # the thread keeps to sleeping: its caller may need the core
SLEEP_SECONDS = 50e-6
LOOK_SECONDS = 0.1  # how often those who wait look whether the others are still there

# Through ctypes, because that lets other threads of this process run meanwhile (os.sched_yield does so from 3.12 on).
give_core_away: Callable[[], object] = ctypes.CDLL(None).sched_yield


class Peers(Protocol):
    """What the engine must know of the other ranks to say who is missing."""

    global_ranks: list[int]  # what the members of the group are called outside it

    def missing(self, work: Work) -> list[int]: ...
    def loss_of(self, rank: int) -> str | None: ...


class Engine:
    """Moves one group's operations forward."""

    def __init__(self, peers: Peers, timeout: float, crowded: bool):
        self.peers, self.timeout = peers, timeout
        self.spins = 0 if crowded else SPINS
        self.counts = Counts()
        self.error: RankFailed | None = None
        self.lanes: dict[Hashable, deque[Work]] = {}
        self.book = threading.Lock()  # guards `lanes` and futures; never held while anything moves
        self._turn = threading.Lock()  # held by whoever moves operations forward
        self._callers = 0  # threads inside wait_for
        self._bell = threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self.closed = False

    def submit(self, work: Work, attempt_seconds: float | None) -> Work:
        """Begin an operation; if nothing else is under way, try to end it here, `attempt_seconds` long (None: not)."""
        if self.error is not None:
            raise self.error
        if attempt_seconds is not None and not self.lanes and self._turn.acquire(blocking=False):
            try:
                if not self.lanes:
                    self._run_alone(work, attempt_seconds)
            finally:
                self._turn.release()
            if work.done:
                return work
        with self.book:
            lane = self.lanes.setdefault(work.lane, deque())
            lane.append(work)
        if threading.current_thread() is self._thread:
            self.wait_for(work)  # begun by a future's callback: nobody else would move it
            return work
        if attempt_seconds is not None and lane and lane[0] is work:
            self.advance(lane)
        if not work.done:
            self.ring()
        return work

    def _run_alone(self, work: Work, attempt_seconds: float) -> None:
        turns, until = 0, 0.0
        try:
            for awaited in work.steps:
                work.awaited = awaited
                turns += 1
                if turns == 1:
                    until = perf_counter() + attempt_seconds
                elif perf_counter() > until:
                    return
                elif turns > self.spins:
                    give_core_away()
            work.done = True
        except BaseException as error:
            self._end(error, work)

    def advance(self, only: deque[Work] | None = None) -> None:
        """Let the first operation of every lane, or of one, go as far as it can."""
        if not self._turn.acquire(blocking=False):
            return  # another thread is at it
        ended: list[Work] = []
        try:
            for lane in list(self.lanes.values()) if only is None else [only]:
                while lane and self._step(lane[0]):
                    ended.append(lane.popleft())
            if ended:
                with self.book:
                    self.lanes = {key: lane for key, lane in self.lanes.items() if lane}
        finally:
            self._turn.release()
        for work in ended:  # after the turn: a future's callback may begin the next operation
            work.announce()

    def _step(self, work: Work) -> bool:
        try:
            if not work.done:  # ended with an error of another one's
                work.awaited = next(work.steps)
        except StopIteration:
            work.done = True
        except BaseException as error:
            self._end(error, work)
        return work.done

    def wait_for(self, work: Work, timeout: float = 0.0) -> None:
        """Move everything forward in this thread until the work is done, well or with an error."""
        patience = Patience(self, timeout or self.timeout, self.spins, YIELD_SECONDS)
        with self.book:
            self._callers += 1
        try:
            while not work.done:
                self.advance()
                if not work.done:
                    patience.pause(work)
        except BaseException as error:
            self._end(error, work)
        finally:
            with self.book:
                self._callers -= 1
            if self.lanes:
                self.ring()

    def hand_over(self, work: Work) -> None:
        """Let the work go on without its caller."""
        work.background = True
        self.ring()

    def ring(self) -> None:
        """Wake the background thread if something has to go on without its caller."""
        with self.book:
            if self._callers or not any(work.background for lane in self.lanes.values() for work in lane):
                return
            if self._thread is None:
                self._start_thread()
        self._bell.release()

    def _start_thread(self) -> None:
        # One core is enough to copy with; a second team of threads would take cores from the model. torch keeps that
        # number for the thread that sets it and as the default of threads to come, which is put back here.
        threads, ready = torch.get_num_threads(), threading.Event()

        def run() -> None:
            torch.set_num_threads(1)
            ready.set()
            while not self.closed:
                self._bell.acquire()
                self._serve()

        self._thread = threading.Thread(target=run, name="manyhands_shm", daemon=True)
        self._thread.start()
        ready.wait()
        torch.set_num_threads(threads)

    def _serve(self) -> None:
        """The background thread's turn: until nothing needs it, or a caller waits and does the work itself."""
        patience = Patience(self, self.timeout, 0, BACKGROUND_YIELD_SECONDS)
        while not self.closed and not self._callers and (pending := self._heads(None)):
            self.advance()
            try:
                patience.pause(None)
            except RankFailed as error:
                self._end(error, *pending)

    def _heads(self, waited_for: Work | None) -> list[Work]:
        """The operations under way that somebody counts on."""
        with self.book:
            return [lane[0] for lane in self.lanes.values() if lane and (lane[0].background or waited_for in lane)]

    def under_way(self, kind: str) -> list[Work]:
        with self.book:
            return [work for lane in self.lanes.values() for work in lane if work.lane[0] == kind]  # type: ignore[index]

    def look(self, waited_for: Work | None, waited: float, timeout: float) -> None:
        """Raise if a rank that is waited for cannot come, or did not come in time."""
        for work in self._heads(waited_for):
            missing = self.peers.missing(work)
            lost = {rank: loss for rank in missing if (loss := self.peers.loss_of(rank))}
            if not lost or (work.awaited == ANYONE and len(lost) < len(missing)):
                if waited < timeout or not missing:
                    continue
                numbers = [self.peers.global_ranks[rank] for rank in missing]
                who = " and ".join(f"rank {number}" for number in numbers)
                raise PeerMissing(f"{who} {work.lack} within {timeout:g} s", rank=numbers[0], kind="stalled")
            # It may have done its part just before it went.
            progress = self.counts.progress
            self.advance()
            if work.done or self.counts.progress != progress:
                return
            rank, loss = next(iter(lost.items()))
            number = self.peers.global_ranks[rank]
            raise PeerMissing(f"rank {number} {work.lack}: it {loss}", rank=number, kind="died")

    def _end(self, error: BaseException, *works: Work) -> None:
        """After a failure in the middle the ranks no longer agree where they are: all that is under way ends with it."""
        failed = error if isinstance(error, RankFailed) else RankFailed(f"the group is unusable since: {error!r}")
        self.error = self.error or failed
        with self.book:
            lanes, self.lanes = self.lanes, {}
        for work in [*works, *(work for lane in lanes.values() for work in lane)]:
            if not work.done:
                work.error, work.done = failed, True
                work.announce()
        if not isinstance(error, Exception):
            raise error  # Ctrl-C and the like

    def close(self) -> None:
        self.closed = True
        self._end(RankFailed("the process group was destroyed while this operation was under way"))
        if self._thread is not None and self._thread is not threading.current_thread():
            self._bell.release()
            self._thread.join()


class Patience:
    """One wait: how to pass the time, and when to look for those who do not come."""

    def __init__(self, engine: Engine, timeout: float, spins: int, yield_seconds: float):
        self._engine, self._timeout, self._spins, self._yield_seconds = engine, timeout, spins, yield_seconds
        self._turns = 0
        self._progress = engine.counts.progress
        self._since = perf_counter()
        self._next_look = self._since + LOOK_SECONDS

    def pause(self, waited_for: Work | None) -> None:
        self._turns += 1
        if self._turns <= self._spins:
            return
        now = perf_counter()
        if self._progress != self._engine.counts.progress:
            self._progress, self._since, self._turns = self._engine.counts.progress, now, 0
        waited = now - self._since
        if waited < self._yield_seconds:
            give_core_away()
            return
        sleep(SLEEP_SECONDS if waited < 0.05 else 10 * SLEEP_SECONDS)
        if now >= min(self._next_look, self._since + self._timeout):
            self._next_look = now + LOOK_SECONDS
            self._engine.look(waited_for, waited, self._timeout)
