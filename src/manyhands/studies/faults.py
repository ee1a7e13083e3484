"""Faults: what strikes one rank, for real, at one step or outside of the steps. Chaos breaks runs with them."""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from ..training.checkpoints.checkpoint import published, step_of
from ..world.rank import Rank

MOMENTS = ("start-up", "checkpoint", "evaluation", "end")  # outside of the steps
FAULTS = (
    "kill", "stop", "raise", "exit", "slow", "hang", "sigterm", "disk-full", "corrupt-checkpoint", "parent-killed",
    *(f"{kill}-in-{moment}" for kill in ("kill", "parent-killed") for moment in MOMENTS),
)  # fmt: skip
SLOW_SECONDS = 0.05


@dataclass(frozen=True)
class Fault:
    """What strikes whom, and when. Ranks call it in start-up, as step 0, and before the work of every step."""

    kind: str
    rank: int
    step: int
    folder: str  # of the checkpoints
    newest: int  # step of the last checkpoint before the fault; some faults wait until it is written
    caller: int  # process that started the ranks

    @property
    def moment(self) -> str | None:
        return self.kind.partition("-in-")[2] or None

    def __call__(self, rank: Rank, step: int) -> None:
        if rank.index != self.rank:
            return
        if self.moment is not None:
            if step == 0:
                self._lie_in_wait(rank)
            return
        if step < self.step:
            return
        if self.kind == "slow":
            time.sleep(SLOW_SECONDS)
        elif step == self.step:
            self._strike()

    def _lie_in_wait(self, rank: Rank) -> None:
        """Strike when the rank says that the moment has come; a checkpoint is written while it trains on."""
        if self.moment == "start-up":
            self._kill()
        elif self.moment == "checkpoint":
            threading.Thread(target=self._kill_once_written_to, args=(Path(self.folder),), daemon=True).start()
        else:
            moments = ("evaluation", "wait") if self.moment == "evaluation" else (self.moment,)  # others wait meanwhile
            say = rank.say

            def say_and_die(state: str) -> None:
                say(state)
                if state in moments:
                    self._kill()

            # put in from outside: only the rank itself knows the moment, and nothing else should have to offer it
            rank.say = say_and_die  # type: ignore[method-assign]

    def _kill_once_written_to(self, folder: Path) -> None:
        while not any(folder.glob(".step-*.part")):
            time.sleep(1e-4)
        self._kill()

    def _kill(self) -> None:
        os.kill(self.caller if self.kind.startswith("parent-killed") else os.getpid(), signal.SIGKILL)

    def _strike(self) -> None:
        match self.kind:
            case "raise":
                raise RuntimeError("raised on purpose")
            case "exit":
                os._exit(3)
            case "hang":
                while True:
                    time.sleep(1.0)
            case "disk-full":
                self._written()
                _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
                resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))  # no file of this process grows any more
            case "stop" | "sigterm":
                os.kill(os.getpid(), signal.SIGSTOP if self.kind == "stop" else signal.SIGTERM)
            case "corrupt-checkpoint":
                _flip_a_bit(self._written() / "model.safetensors")
                self._kill()
            case _:
                self._kill()
                time.sleep(60.0)  # until it is dead, or this process with its caller

    def _written(self) -> Path:
        """The newest checkpoint, once the one before the fault is there."""
        until = time.monotonic() + 10
        while time.monotonic() < until:
            found = published(Path(self.folder))
            if found and step_of(found[0]) >= self.newest:
                break
            time.sleep(0.01)
        return found[0]


def _flip_a_bit(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
