"""The lookout: the hang doctor of ranks that torchrun started on one host.

    rank 0   train ...............          each rank has a thread that looks at the heartbeats of all of them;
      └ lookout  .  .  .  ! says who        the first to see a stalled or dead rank speaks, with everybody's stacks,
    rank 1   train ... (stuck)              and kills the stalled one: torchrun then ends the others or restarts all
      └ lookout  .  .  .

They have no caller of ours, and no rank is a safe place for the only watcher: it may be the one that is stopped.
"""

from __future__ import annotations

import faulthandler
import os
import selectors
import signal
import sys
import threading
from typing import Any

from ...errors import RankFailed
from ..rank import Rank
from ..shared_memory import anonymous_file, close_quietly, open_of_process
from .heartbeats import DONE, PID, where, who
from .process_lock import VOICE_BYTE, RecordLock
from .stalls import LOOK_SECONDS, Doctor, answer_with_stacks, stacks


class Lookout:
    """Watches the ranks of a host while the block runs; every one of them must enter it."""

    def __init__(self, rank: Rank, stall_seconds: float | None):
        self.rank, self.board = rank, rank.board
        self._doctor = Doctor(stall_seconds)
        self._voice = RecordLock(self.board.fd, VOICE_BYTE)
        self._over, self._wake = os.pipe()
        self._thread = threading.Thread(target=self._look, name="manyhands-lookout", daemon=True)

    def __enter__(self) -> Lookout:
        made = anonymous_file(0, "manyhands-stacks") if self.rank.index == 0 else -1
        if made >= 0:
            os.ftruncate(made, 0)
        pid, number = self.rank.agree((os.getpid(), made))
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

    def _look(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._over, selectors.EVENT_READ)
            for index in range(self.board.processes):
                if index != self.rank.index and hasattr(os, "pidfd_open"):
                    selector.register(os.pidfd_open(self.board.row(index)[PID]), selectors.EVENT_READ, index)
            try:
                self._look_until_something_ends(selector)
            finally:
                close_quietly(*(key.fd for key in list(selector.get_map().values()) if key.data is not None))

    def _look_until_something_ends(self, selector: selectors.BaseSelector) -> None:
        while True:
            for key, _ in selector.select(timeout=min(LOOK_SECONDS, self._doctor.limit / 4)):
                if key.data is None:
                    return  # this rank is done
                selector.unregister(key.fileobj)
                close_quietly(key.fd)
                if not self.board.beat(key.data).done:
                    self._speak(self._death(key.data))
                    return  # torchrun ends the others
            if failure := self._doctor(self.board):
                self._speak(failure)
                return

    def _death(self, index: int) -> RankFailed:
        beat = self.board.beat(index)
        name = who(index, self.board.ranks, self.board.processes)
        text = f"{name} died in {where(beat.step, beat.phase)}: its process is gone"
        return RankFailed(text, rank=index, step=beat.step, phase=beat.phase, kind="died")

    def _speak(self, failure: RankFailed) -> None:
        """Say it once for all ranks, and end the one that stalled."""
        if not self._voice.try_acquire():
            return
        if failure.kind == "died":
            print(failure, file=sys.stderr, flush=True)
            return
        print(f"{failure}\n{stacks(self.board, self._stacks)}", file=sys.stderr, flush=True)
        assert failure.rank is not None
        os.kill(self.board.row(failure.rank)[PID], signal.SIGKILL)
