"""What every engine offers: it starts the processes of a world, or joins those that somebody else has started.

    with engine.joined(world, tell, ask):      from here on the processes can be met
        what = engine.once(make)               worked out by one process, given to all
        return engine.run(body)                body(rank) on every process

A new engine is one file with one class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from ...errors import RankFailed
from ...record.cores import available_cores
from ..devices import resolve_devices
from ..health.heartbeats import Board
from ..rank import Rank

T = TypeVar("T")
Body = Callable[[Rank], Any]
Tell = Callable[[str, Any], None]
Ask = Callable[[str, Any], Any]
Shared = Mapping[str, Tensor] | None
Ready = Callable[[], None]
Forgive = Callable[[RankFailed, Board], bool]


@dataclass(frozen=True)
class World:
    """The processes of a fit: the first `ranks` of them train, the rest serve."""

    processes: int
    ranks: int
    devices: list[torch.device]
    threads: int  # of each process
    transport: str = "auto"
    survives: bool = False  # the others go on where one dies
    stall_seconds: float | None = None
    preload: tuple[str, ...] = ()  # modules that every process imports


class Engine(ABC):
    hosts = 1
    leads = True  # whether this process speaks for the run: it writes the run folder and decides where to start
    restarts = 0  # how often somebody else has started these processes again,
    began = born = 0.0  # when (seconds since 1970) that one began, and when it last started them,
    processes: int | None = None  # and how many; None where a fit has as many as it needs
    lost: Callable[[str], Any] = staticmethod(lambda reason: None)  # to be told why this process is about to be ended
    may_restart = True  # whether `run` can be called again after a failure
    elsewhere = False  # ranks may not see the files of this host
    more: Callable[[int], bool] | None = None  # asked now and then, where some are missing: start again with so many?

    def reserve(self, processes: int) -> None:  # noqa: B027  # most hold nothing
        """Fits will come of which the largest needs room for so many."""

    def check(self, processes: int, name: str, survives: bool) -> None:  # noqa: B027  # most have nothing to refuse
        """Refuse what cannot be started, before anything is tried; `name` is whose processes they are."""

    def room(self, processes: int) -> int:
        """How many of these processes can be started now, after a failure."""
        return processes

    def agreed(self, make: Callable[[], T]) -> T:
        """What the process that leads has found, on all of them; asked by all of them, between fits."""
        return make()

    def together(self, processes: int, fit: Callable[[], T], outline: Callable[[T], T], part: bool) -> T:
        """`fit()` here. Where others run it as well, all end alike: with the record (in outline) or with one problem.

        `part`: it is one of several fits, and need not use all processes that somebody else has started.
        """
        return fit()

    def devices(self, spec: str, count: int) -> list[torch.device]:
        """One for every process, or for every rank of one process; call it after `check`."""
        return resolve_devices(spec, count)

    def threads(self, ranks: int) -> int:
        """How many threads of its own each rank has where nobody says; call it after `check`."""
        return max(1, available_cores() // ranks)

    def joined(self, world: World, tell: Tell, ask: Ask) -> AbstractContextManager[Any]:
        """Be among the processes of a world while the block runs. `tell` and `ask` reach the caller from a rank."""
        self.world, self.tell, self.ask = world, tell, ask
        return nullcontext()

    def once(self, make: Callable[[], T]) -> T:
        """What one process makes, on all of them. If it refuses, all refuse."""
        return make()

    @abstractmethod
    def run(self, body: Body, shared: Shared, ready: Ready, forgive: Forgive, time_limit: float | None) -> Any:
        """Run `body` on every rank and return what the one that leads gave back.

        All see `shared` in shared memory. `ready` is called when nothing can be refused any more. `forgive` may let
        the others go on after a death.
        """

    def close(self) -> None:  # noqa: B027  # most hold nothing
        """Give back what was reserved."""
