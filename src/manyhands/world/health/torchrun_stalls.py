"""Stalled and dead ranks where torchrun started them: those of a host have an eye on each other.

    rank 0   train ...............          each rank has a thread that looks at the heartbeats of all of them;
      └ watch    .  .  .  ! reports         the first to see a stalled or dead rank reports it, with everybody's stacks,
    rank 1   train ... (stuck)              and kills the stalled one: torchrun then ends the others or restarts all
      └ watch    .  .  .

They have no caller of ours, and no rank is a safe place for the only watcher: it may be the one that is stopped. Where
there are several hosts, each watches its own ranks, and torchrun_hosts.py the hosts.
"""

from __future__ import annotations

import faulthandler
import os
import selectors
import signal
import sys
import threading
from typing import Any, Protocol

from ...errors import RankFailed
from ..rank import Rank
from ..shared_memory import anonymous_file, close_quietly, open_of_process
from .heartbeats import DONE, death
from .process_lock import REPORT_BYTE, ProcessLock
from .stacks import answer_with_stacks, is_stopped, stacks
from .stalls import LOOK_SECONDS, StallFinder


class Said(Protocol):
    """What the processes tell each other (torchrun_meeting.py)."""

    def say(self, word: str, value: Any) -> None: ...

    def heard(self, word: str, index: int) -> Any: ...


class TorchrunWatch:
    """Watches the ranks of a host while the block runs; every one of them must enter it."""

    def __init__(self, rank: Rank, stall_seconds: float | None, said: Said):
        self.rank, self.board, self._said = rank, rank.board, said
        self._find_stall = StallFinder(stall_seconds)
        self._report_lock = ProcessLock(self.board.fd, REPORT_BYTE)
        self._over, self._wake = os.pipe()
        self._thread = threading.Thread(target=self._watch, name="manyhands-watch", daemon=True)

    def __enter__(self) -> TorchrunWatch:
        first, made = self.board.own[0], -1
        if self.rank.index == first:
            made = anonymous_file(0, "manyhands-stacks")
            self._said.say("stacks", (os.getpid(), made))
        pid, number = self._said.heard("stacks", first)
        self._stacks = open_of_process(pid, number, os.O_APPEND)  # all write behind each other
        self.rank.barrier()
        close_quietly(made)
        answer_with_stacks(self._stacks)
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.board.row(self.rank.index)[DONE] = 1  # whatever ends this rank now, it says so itself
        os.write(self._wake, b".")
        self._thread.join()
        faulthandler.unregister(signal.SIGUSR1)
        close_quietly(self._over, self._wake, self._stacks)

    def _watch(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._over, selectors.EVENT_READ)
            for index in self.board.own:
                if index != self.rank.index and hasattr(os, "pidfd_open"):
                    selector.register(os.pidfd_open(self.board.pid(index)), selectors.EVENT_READ, index)
            try:
                if failure := self._first_failure(selector):
                    self._report(failure)  # torchrun ends the others
            finally:
                close_quietly(*(key.fd for key in list(selector.get_map().values()) if key.data is not None))

    def _first_failure(self, selector: selectors.BaseSelector) -> RankFailed | None:
        """Waits for it; None when this rank is done."""
        while True:
            for key, _ in selector.select(timeout=min(LOOK_SECONDS, self._find_stall.limit / 4)):
                if key.data is None:
                    return None
                selector.unregister(key.fileobj)
                close_quietly(key.fd)
                beat = self.board.beat(key.data)
                if not beat.done:
                    return death(self.board, beat, "its process is gone")
            if (failure := self._find_stall(self.board)) and not self._waits_for_others(failure):
                return failure

    def _waits_for_others(self, failure: RankFailed) -> bool:
        """Ranks of this host that all wait, wait for one of another host, which is named there."""
        assert failure.rank is not None
        waits = failure.phase in ("communication", "wait") and not is_stopped(self.board.pid(failure.rank))
        return waits and len(self.board.own) < self.board.processes

    def _report(self, failure: RankFailed) -> None:
        """Once for all ranks; the one that stalled is ended."""
        if not self._report_lock.try_acquire():
            return
        if failure.kind == "died":
            print(failure, file=sys.stderr, flush=True)
            return
        print(f"{failure}\n{stacks(self.board, self._stacks)}", file=sys.stderr, flush=True)
        assert failure.rank is not None
        os.kill(self.board.pid(failure.rank), signal.SIGKILL)
