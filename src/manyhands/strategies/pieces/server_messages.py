"""Letters between ranks and servers: gradients one way, weights the other.

    rank                                            server
      send(PUSH, gradients)        ------>            take()          whole gradients, or rows of sparse ones
      receive(PUSH)                <------            reply()         the server's slice of the weights
      send(PASS)                   ------>            take()          a step without an update

Here they lie in tensors that all processes of a host see, and a counter announces a letter; `mail_network` carries
them between hosts. A rank has at most one letter to each server under way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import monotonic_ns
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ...record.clock import Clock
from ...world.health.waiting import MOMENT, Bell, wait_until
from ...world.shm.group_memory import fence
from .foreach import copy_all
from .gradient_slots import GradientSlot, nbytes, parts, rows_of
from .server_slices import Slice

PASS, PUSH = 0, 1
LINE = 8  # numbers of 8 bytes in a cache line
_POSTED, _KIND, _SEEN = 0, 1, 2  # cells a rank writes for each server
_ANSWERED, _TOOK = 0, 1  # cells a server writes for each rank
UPDATES, RATE = 0, 1  # cells a server writes for all ranks
Gradients = list[Tensor | None]


class Letter(NamedTuple):
    sender: int
    kind: int
    seen: int  # updates of this server in the weights behind the gradient
    gradients: Gradients


class Post(Protocol):
    """A rank's side."""

    rate: float | None  # the learning rate, as the first server last said

    def send(self, kind: int, gradients: Mapping[str, Tensor | None]) -> None: ...
    def receive(self, kind: int) -> None: ...
    def fetch(self) -> None: ...


class Office(Protocol):
    """A server's side."""

    def take(self, senders: Sequence[int], awaited: Callable[[], bool]) -> Letter | None:
        """The next letter of one of these ranks; None once nobody is awaited any more."""

    def take_round(self) -> list[Letter]:
        """The next letter of every rank, in their order."""

    def reply(self, sender: int, kind: int, updates: int, rate: float, took: int) -> None:
        """Answer a letter; `took` are the nanoseconds of the update made with it."""

    def hand_out(self, updates: int, rate: float) -> None:
        """Give status and weights to rank 0, which fetches them between steps."""


def mail_tensors(parameters: Mapping[str, Tensor], ranks: int, slices: Sequence[Sequence[Slice]]) -> dict[str, Tensor]:
    """What ranks and servers of one host share."""
    servers = len(slices)
    shared = {f"weights/{name}": parameter.detach().to("cpu") for name, parameter in parameters.items()}
    shared["from_ranks"] = torch.zeros(ranks, servers, LINE, dtype=torch.int64)
    shared["from_servers"] = torch.zeros(servers, ranks, LINE, dtype=torch.int64)
    shared["status"] = torch.zeros(servers, LINE, dtype=torch.float64)
    shared["bells"] = torch.zeros(ranks + servers, LINE, dtype=torch.int64)  # one to wake each process
    for rank in range(ranks):
        for server, own in enumerate(slices):
            shared[f"counts/{rank}/{server}"] = torch.zeros(len(own), dtype=torch.int64)
        for name, parameter in parameters.items():
            shared[f"values/{rank}/{name}"] = torch.zeros_like(parameter, device="cpu")
            shared[f"rows/{rank}/{name}"] = torch.zeros(rows_of(parameter), dtype=torch.int64)
    return shared


def book_update(clock: Clock, took: int) -> None:
    """A rank has its answer: the end of its wait, as long as the server was at work on the update, was no waiting."""
    if took:
        clock.since("update", monotonic_ns() - took)


def _cells(shared: Tensor) -> Any:
    """Numbers of shared memory, one by one: a memoryview costs less than half of what numpy does."""
    numbers: Any = shared.numpy()
    return memoryview(numbers)


def _slot(shared: Mapping[str, Tensor], rank: int, server: int, slices: Sequence[Slice]) -> GradientSlot:
    return GradientSlot(
        [item.of(shared[f"values/{rank}/{item.name}"]) for item in slices],
        [shared[f"rows/{rank}/{item.name}"][item.start : item.stop] for item in slices],
        shared[f"counts/{rank}/{server}"],
    )


class MemoryPost:
    """A rank's side in shared memory: it fills its slots, raises its counter, and copies the weights when answered.

    `copies` are the parameters that are copies of the servers' weights; the others are those weights themselves.
    """

    def __init__(
        self,
        shared: Mapping[str, Tensor],
        clock: Clock,
        rank: int,
        slices: Sequence[Sequence[Slice]],
        own: Mapping[str, Tensor],
        copies: Mapping[str, Tensor],
    ):
        self._clock, self._rank, self._slices = clock, rank, slices
        self._mine = _cells(shared["from_ranks"])
        self._theirs = _cells(shared["from_servers"])
        self._status = _cells(shared["status"])
        self._slots = [_slot(shared, rank, server, items) for server, items in enumerate(slices)]
        self._homes = {name: shared[f"values/{rank}/{name}"] for name in own}
        self._weights = [shared[f"weights/{name}"] for name in copies]
        self._copies = list(copies.values())
        self._pulled = nbytes(list(own.values()))
        ranks = len(shared["from_ranks"])
        self._bell = Bell(shared["bells"][rank])
        self._servers = [Bell(shared["bells"][ranks + server]) for server in range(len(slices))]
        self._posted = 0
        self.rate: float | None = None

    def send(self, kind: int, gradients: Mapping[str, Tensor | None]) -> None:
        self._settle()
        self._posted += 1
        with self._clock.during("communication"):
            for server, slot in enumerate(self._slots):
                if kind == PUSH:
                    self._clock.count(self._fill(slot, self._slices[server], gradients))
                self._mine[self._rank, server, _KIND] = kind
                if fence:
                    fence()
                self._mine[self._rank, server, _POSTED] = self._posted
                self._servers[server].ring()

    def _fill(self, slot: GradientSlot, items: Sequence[Slice], gradients: Mapping[str, Tensor | None]) -> int:
        """Write what does not lie there already; returns the bytes that are handed over."""
        if slot.whole and all(gradients[item.name] is self._homes[item.name] for item in items):
            return slot.nbytes
        return slot.put([parts(gradients[item.name], item.start, item.stop) for item in items])

    def _settle(self) -> None:
        """Wait until every server has answered the last letter."""
        with self._clock.during("wait"):
            wait_until(
                lambda: not self._unanswered(),
                lambda: f"server {self._unanswered()[0]} of {len(self._slices)} did not reach letter {self._posted}",
                bell=self._bell,
                awake=MOMENT,
            )
            book_update(
                self._clock, max(self._theirs[server, self._rank, _TOOK] for server in range(len(self._slices)))
            )

    def _unanswered(self) -> list[int]:
        theirs, rank, posted = self._theirs, self._rank, self._posted
        return [server for server in range(len(self._slices)) if theirs[server, rank, _ANSWERED] < posted]

    def receive(self, kind: int) -> None:
        self._settle()
        if kind == PUSH:
            with self._clock.during("communication"):
                self.fetch()
                self._clock.count(self._pulled)

    @torch.no_grad()
    def fetch(self) -> None:
        """The weights as they are now; a server may be writing them (as in any asynchronous server)."""
        self.rate = self._status[0, RATE]
        for server in range(len(self._slices)):
            self._mine[self._rank, server, _SEEN] = int(self._status[server, UPDATES])
        if self._copies:
            copy_all(self._copies, self._weights)


class MemoryOffice:
    """A server's side in shared memory: letters are read where they lie, answers are counters."""

    def __init__(self, shared: Mapping[str, Tensor], clock: Clock, server: int, ranks: int, slices: Sequence[Slice]):
        self._clock, self._server = clock, server
        self._theirs = _cells(shared["from_ranks"])
        self._mine = _cells(shared["from_servers"])
        self._status = _cells(shared["status"])
        self._slots = [_slot(shared, rank, server, slices) for rank in range(ranks)]
        self._taken = [0] * ranks
        self._bell = Bell(shared["bells"][ranks + server])
        self._ranks = [Bell(shared["bells"][rank]) for rank in range(ranks)]

    def take(self, senders: Sequence[int], awaited: Callable[[], bool]) -> Letter | None:
        found: list[int] = []

        def come() -> bool:
            found[:] = self._come(senders)
            return bool(found) or not awaited()

        with self._clock.during("wait"):
            wait_until(come, lambda: f"none of the ranks {list(senders)} did reach its next letter", bell=self._bell)
        return self._open(min(found, key=lambda rank: self._taken[rank])) if found else None  # the least served first

    def take_round(self) -> list[Letter]:
        """Asleep until the first letter comes; that rank waits from then on, so there is a core to stay awake on."""
        everyone = range(len(self._taken))

        def lack() -> str:
            missing = [rank for rank in everyone if rank not in self._come(everyone)]
            return f"the ranks {missing} did not reach their next letter"

        with self._clock.during("wait"):
            wait_until(lambda: bool(self._come(everyone)), lack, bell=self._bell)
            wait_until(lambda: len(self._come(everyone)) == len(everyone), lack, bell=self._bell, awake=MOMENT)
        return [self._open(rank) for rank in everyone]

    def _come(self, senders: Sequence[int]) -> list[int]:
        theirs, server, taken = self._theirs, self._server, self._taken
        return [rank for rank in senders if theirs[rank, server, _POSTED] > taken[rank]]

    def _open(self, rank: int) -> Letter:
        if fence:
            fence()
        self._taken[rank] += 1
        kind, seen = self._theirs[rank, self._server, _KIND], self._theirs[rank, self._server, _SEEN]
        return Letter(rank, kind, seen, self._slots[rank].get() if kind == PUSH else [])

    def reply(self, sender: int, kind: int, updates: int, rate: float, took: int) -> None:
        self._mine[self._server, sender, _TOOK] = took
        self._status[self._server, UPDATES] = updates
        self._status[self._server, RATE] = rate
        if fence:
            fence()
        self._mine[self._server, sender, _ANSWERED] = self._taken[sender]
        self._ranks[sender].ring()

    def hand_out(self, updates: int, rate: float) -> None:
        return  # both lie where every rank sees them
