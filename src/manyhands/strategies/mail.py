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
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ..measure.clock import Clock
from ..world.patience import Bell, wait_until
from ..world.shm_memory import fence
from .gradient_slots import GradientSlot, nbytes, parts, rows_of
from .slices import Slice

PASS, PUSH = 0, 1
LINE = 8  # numbers of 8 bytes in a cache line
_POSTED, _KIND, _SEEN = 0, 1, 2  # cells a rank writes for each server
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

    def reply(self, sender: int, kind: int, updates: int, rate: float) -> None: ...
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
            shared[f"values/{rank}/{name}"] = torch.zeros(parameter.shape, dtype=parameter.dtype)
            shared[f"rows/{rank}/{name}"] = torch.zeros(rows_of(parameter), dtype=torch.int64)
    return shared


def _slot(shared: Mapping[str, Tensor], rank: int, server: int, slices: Sequence[Slice]) -> GradientSlot:
    return GradientSlot(
        [item.of(shared[f"values/{rank}/{item.name}"]) for item in slices],
        [shared[f"rows/{rank}/{item.name}"][item.start : item.stop] for item in slices],
        shared[f"counts/{rank}/{server}"],
    )


class MemoryPost:
    """A rank's side in shared memory: it fills its slots, raises its counter, and copies the weights when answered."""

    def __init__(
        self,
        shared: Mapping[str, Tensor],
        clock: Clock,
        rank: int,
        slices: Sequence[Sequence[Slice]],
        own: Mapping[str, Tensor],
    ):
        self._clock, self._slices = clock, slices
        self._mine: Any = shared["from_ranks"].numpy()[rank]
        self._theirs: Any = shared["from_servers"].numpy()[:, rank, 0]
        self._status: Any = shared["status"].numpy()
        self._slots = [_slot(shared, rank, server, items) for server, items in enumerate(slices)]
        self._weights = [shared[f"weights/{name}"] for name in own]
        self._own = list(own.values())
        ranks = len(shared["from_ranks"])
        self._bell = Bell(shared["bells"][rank])
        self._servers = [Bell(shared["bells"][ranks + server]) for server in range(len(slices))]
        self._posted = 0
        self.rate: float | None = None

    def send(self, kind: int, gradients: Mapping[str, Tensor | None]) -> None:
        self._settle()
        self._posted += 1
        with self._clock.during("communication"):
            for server, (slot, items) in enumerate(zip(self._slots, self._slices, strict=True)):
                if kind == PUSH:
                    self._clock.count(slot.put([parts(gradients[item.name], item.start, item.stop) for item in items]))
                self._mine[server, _KIND] = kind
                if fence:
                    fence()
                self._mine[server, _POSTED] = self._posted
                self._servers[server].ring()

    def _settle(self) -> None:
        """Wait until every server has answered the last letter."""
        with self._clock.during("wait"):
            wait_until(
                lambda: bool((self._theirs >= self._posted).all()),
                lambda: (
                    f"server {int(self._theirs.argmin())} of {len(self._slices)} did not reach letter {self._posted}"
                ),
            )

    def receive(self, kind: int) -> None:
        self._settle()
        if kind == PUSH:
            with self._clock.during("communication"):
                self.fetch()
                self._clock.count(nbytes(self._own))

    @torch.no_grad()
    def fetch(self) -> None:
        """The weights as they are now; a server may be writing them (as in any asynchronous server)."""
        self.rate = float(self._status[0, RATE])
        self._mine[:, _SEEN] = self._status[:, UPDATES]
        torch._foreach_copy_(self._own, self._weights)


class MemoryOffice:
    """A server's side in shared memory: letters are read where they lie, answers are counters."""

    def __init__(self, shared: Mapping[str, Tensor], clock: Clock, server: int, ranks: int, slices: Sequence[Slice]):
        self._clock = clock
        self._theirs: Any = shared["from_ranks"].numpy()[:, server]
        self._mine: Any = shared["from_servers"].numpy()[server, :, 0]
        self._status: Any = shared["status"].numpy()[server]
        self._slots = [_slot(shared, rank, server, slices) for rank in range(ranks)]
        self._taken = [0] * ranks
        self._bell = Bell(shared["bells"][ranks + server])
        self._ranks = [Bell(shared["bells"][rank]) for rank in range(ranks)]

    def take(self, senders: Sequence[int], awaited: Callable[[], bool]) -> Letter | None:
        found: list[int] = []

        def come() -> bool:
            found[:] = [rank for rank in senders if self._theirs[rank, _POSTED] > self._taken[rank]]
            return bool(found) or not awaited()

        with self._clock.during("wait"):
            wait_until(come, lambda: f"none of the ranks {list(senders)} did reach its next letter", bell=self._bell)
        if not found:
            return None
        if fence:
            fence()
        rank = min(found, key=lambda number: self._taken[number])  # the least served first
        self._taken[rank] += 1
        _, kind, seen = self._theirs[rank, :3].tolist()
        return Letter(rank, kind, seen, self._slots[rank].get() if kind == PUSH else [])

    def reply(self, sender: int, kind: int, updates: int, rate: float) -> None:
        self._status[:2] = updates, rate
        if fence:
            fence()
        self._mine[sender] = self._taken[sender]
        self._ranks[sender].ring()

    def hand_out(self, updates: int, rate: float) -> None:
        return  # both lie where every rank sees them
