"""Who moves an operation forward, and how long anyone waits.

An operation is a generator: it works until it needs another rank, then yields that rank's number, and is resumed until it
ends. The same generator runs wherever there is somebody to run it:

    alone        in the call itself, while nothing else is under way: no lock is fought for, no thread is woken
    wait()       in the caller's thread, together with everything else under way
    background   in a thread of the group, started the first time an operation must go on while its caller computes

Operations of one lane (all collectives; sends to one rank; receives of one tag from one rank) run in the order they were
issued; lanes do not wait for each other. An operation that asked for a future completes it in whichever thread ended it.

Waiting spins for a moment (only where there is a core for every rank), then gives its core away at every turn, then
sleeps. Any byte moved renews the patience; a rank that is gone, or `timeout` without progress, ends the group with an
error that names the rank, and every later call repeats it.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Hashable
from dataclasses import dataclass
from datetime import timedelta
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from manyhands.errors import RankFailed

Steps = Generator[int, None, None]
ANYONE = -1

SPINS = 300  # about 50 microseconds
YIELD_SECONDS = 0.003
LOOK_SECONDS = 0.1  # how often the waiting look whether those they wait for are still there

# Called through ctypes because it then lets other threads of this process run as well.
give_core_away: Callable[[], object] = ctypes.CDLL(None).sched_yield


@dataclass
class Meter:
    """What the group has done so far; the clock reads differences."""

    operations: int = 0
    moved_bytes: int = 0  # payload this rank handed over
    waited_seconds: float = 0.0  # in callers' threads, for ranks that had not come yet
    background_seconds: float = 0.0  # the background thread's time, waits included


class Work(dist.Work):
    """The handle torch gives to the caller of an asynchronous operation."""

    def __init__(self, engine: Engine, name: str, steps: Steps, outputs: list[Tensor], background: bool = True):
        super().__init__()
        self.engine, self.name, self.steps, self.outputs = engine, name, steps, outputs
        self.background = background  # must go on while the caller is elsewhere
        self.done = False
        self.error: BaseException | None = None
        self.awaited = ANYONE
        self.source = -1
        self._promise: Future | None = None
        self._future: Future | None = None

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        if not self.done:
            self.engine.wait_for(self, timeout.total_seconds())
        if self.error is not None:
            raise self.error
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        if not self.done:
            self.engine.advance()
        return self.done

    def is_success(self) -> bool:
        return self.done and self.error is None

    def exception(self) -> BaseException | None:
        return self.error

    def result(self) -> list[Tensor]:
        return self.outputs

    def source_rank(self) -> int:
        return self.source

    _source_rank = source_rank

    def get_future(self) -> Future:
        with self.engine.book:
            if self._future is None:
                self._future = Future()
                if not self.done or self.error is not None:
                    # Only a callback that raises makes an error that C++ (torch's DDP) sees as one.
                    self._promise, self._future = self._future, self._future.then(self._deliver)
                elif self.done:
                    self._future.set_result(self.outputs)
                    return self._future
            waiting = not self.done
        if waiting and not self.background:
            self.background = True
            self.engine.ring()
        elif not waiting:
            self.announce()
        return self._future

    def announce(self) -> None:
        """Complete the future, if anybody asked for one, exactly once."""
        with self.engine.book:
            promise, self._promise = self._promise, None
        if promise is not None:
            promise.set_result(None)

    def _deliver(self, promise: Future) -> list[Tensor]:
        if self.error is not None:
            raise self.error
        return self.outputs


class Engine:
    """Moves one group's operations forward."""

    def __init__(self, timeout: float, crowded: bool, late: Callable[[Work], list[int]], loss_of: Callable[[int], str | None], label: Callable[[int], int]):
        self.timeout = timeout
        self.spins = 0 if crowded else SPINS
        self.late, self.loss_of, self.label = late, loss_of, label
        self.meter = Meter()
        self.error: BaseException | None = None
        self.lanes: dict[Hashable, deque[Work]] = {}
        self.book = threading.Lock()  # guards `lanes` and futures; never held across work
        self._turn = threading.Lock()  # held by whoever moves operations forward
        self._callers = 0
        self._bell = threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._closed = False

    def submit(self, lane: Hashable, work: Work, attempt_seconds: float) -> Work:
        """Start an operation: for at most `attempt_seconds` here and alone if nothing else is under way."""
        if self.error is not None:
            raise self.error
        self.meter.operations += 1
        if not self.lanes and self._turn.acquire(blocking=False):
            try:
                if not self.lanes:
                    self._run_alone(work, attempt_seconds)
            finally:
                self._turn.release()
            if work.done:
                return work
        with self.book:
            self.lanes.setdefault(lane, deque()).append(work)
        if threading.current_thread() is self._thread:  # a future's callback: nobody else would move it
            self.wait_for(work)
        elif work.background:
            self.ring()
        return work

    def _run_alone(self, work: Work, attempt_seconds: float) -> None:
        turns, spins, until = 0, self.spins, 0.0
        try:
            for work.awaited in work.steps:
                turns += 1
                if turns == 1:
                    until = perf_counter() + attempt_seconds
                if turns > spins:
                    give_core_away()
                if perf_counter() > until:
                    return
            work.done = True
        except BaseException as error:
            self._break(error, work)
            if not isinstance(error, Exception):
                raise

    def advance(self) -> None:
        """Let every lane's first operation go as far as it can."""
        if not self._turn.acquire(blocking=False):
            return  # another thread is at it
        ended: list[Work] = []
        try:
            for lane in list(self.lanes.values()):
                while lane and self._step(lane[0]):
                    ended.append(lane.popleft())
            if ended:
                with self.book:
                    self.lanes = {key: lane for key, lane in self.lanes.items() if lane}
        finally:
            self._turn.release()
        for work in ended:  # without the lock: a future's callback may start the next operation
            work.announce()

    def _step(self, work: Work) -> bool:
        try:
            work.awaited = next(work.steps)
            return False
        except StopIteration:
            work.done = True
            return True
        except BaseException as error:
            self._break(error, work)
            if not isinstance(error, Exception):
                raise
            return True

    def wait_for(self, work: Work, timeout: float = 0.0) -> None:
        """Move everything forward in the caller's thread until this work is done."""
        patience = Patience(self, timeout or self.timeout)
        with self.book:
            self._callers += 1
        try:
            while not work.done:
                self.advance()
                if not work.done:
                    patience.pause(lambda: [work])
        except BaseException as error:
            self._break(error, work)
            if not isinstance(error, RankFailed):
                raise
        finally:
            with self.book:
                self._callers -= 1
            if self.lanes:
                self.ring()

    def ring(self) -> None:
        """Wake the background thread if something must go on without its caller."""
        if self._callers or not self._for_background():
            return
        if self._thread is None:
            threads = torch.get_num_threads()
            ready = threading.Event()
            self._thread = threading.Thread(target=self._background, args=(ready,), name="manyhands-shm", daemon=True)
            self._thread.start()
            ready.wait()
            torch.set_num_threads(threads)  # see _background
        self._bell.release()

    def _background(self, ready: threading.Event) -> None:
        # One core is enough to copy with; a second team of threads would take cores from the model. torch keeps this
        # number for the calling thread and as the default of later threads, which the starter of this thread restores.
        torch.set_num_threads(1)
        ready.set()
        while not self._closed:
            self._bell.acquire()
            began, waited = perf_counter(), self.meter.waited_seconds
            patience = Patience(self, self.timeout, spins=0)
            while not self._closed and not self._callers and (pending := self._for_background()):
                self.advance()
                try:
                    patience.pause(lambda: pending)
                except RankFailed as error:
                    self._break(error, pending[0])
            if not self._callers:
                self.meter.waited_seconds = waited
            self.meter.background_seconds += perf_counter() - began

    def _for_background(self) -> list[Work]:
        with self.book:
            return [work for lane in self.lanes.values() for work in lane if work.background]

    def _break(self, error: BaseException, work: Work) -> None:
        """After a failure in the middle, ranks no longer agree where they are: everything under way ends with it."""
        self.error = self.error or error
        with self.book:
            lanes, self.lanes = self.lanes, {}
        for failed in [work, *(w for lane in lanes.values() for w in lane)]:
            if not failed.done:
                failed.error, failed.done = error, True
                failed.announce()

    def close(self) -> None:
        self._closed = True
        self._break(RankFailed("the process group was destroyed with operations under way"), Work(self, "", _nothing(), []))
        if self._thread is not None and self._thread is not threading.current_thread():
            self._bell.release()
            self._thread.join()
