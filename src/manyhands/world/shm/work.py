"""An operation of a group: a generator, and the handle that torch gives to its caller."""

from __future__ import annotations

from collections.abc import Generator, Hashable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

if TYPE_CHECKING:
    from .engine import Engine

Steps = Generator[int, None, None]  # works until it needs another rank, then yields that rank's number
ANYONE = -1


@dataclass
class Counts:
    """What a group has done so far."""

    moved_bytes: int = 0  # payload this rank handed over
    progress: int = 0  # stages passed and pieces moved: what patience is renewed by


class Work(dist.Work):
    """The handle torch gives to the caller of an operation."""

    # Declared, so that they come before whatever torch's class has under these names, now or in its next version.
    __slots__ = (
        "_future",
        "_promise",
        "awaited",
        "background",
        "done",
        "engine",
        "error",
        "lack",
        "lane",
        "limit",
        "outputs",
        "source",
        "steps",
    )

    def __init__(
        self, engine: Engine, lane: Hashable, lack: str, steps: Steps, outputs: list[Tensor], background: bool
    ):
        super().__init__()
        self.engine, self.lane, self.steps, self.outputs = engine, lane, steps, outputs
        self.lack = lack  # what a missing rank failed to do: "did not reach all_reduce #17"
        self.background = background  # must go on while the caller is elsewhere
        self.awaited = ANYONE
        self.source = -1
        self.limit = 0.0  # seconds; 0: the group's
        self.done = False
        self.error: BaseException | None = None
        self._promise: Future | None = None
        self._future: Future | None = None

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        if not self.done:
            self.engine.wait_for(self, timeout.total_seconds() or self.limit)
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
                if self.done and self.error is None:
                    self._future.set_result(self.outputs)
                else:
                    # Only an error raised by a callback reaches C++ (torch's DDP) as an error.
                    self._promise, self._future = self._future, self._future.then(self._deliver)
        if self.done:
            self.announce()
        else:
            self.engine.hand_over(self)
        return self._future

    def announce(self) -> None:
        """Complete the future, if anybody asked for one, once."""
        with self.engine.book:
            promise, self._promise = self._promise, None
        if promise is not None:
            promise.set_result(None)

    def _deliver(self, promise: Future) -> list[Tensor]:
        if self.error is not None:
            raise self.error
        return self.outputs
