"""Messages between the ranks and servers of one host: they lie in tensors that all see, and a counter announces each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...record.clock import Clock
from ...world.health.waiting import MOMENT, Bell, wait_until
from ...world.shm.group_memory import fence
from .gradient_slots import GradientSlot, nbytes, slot_tensors
from .parameter_slices import Slice
from .server_messages import PUSH, RATE, UPDATES, Message, as_bits, book_update, from_bits

LINE = 8  # numbers of 8 bytes in a cache line
_POSTED, _KIND, _SEEN, _UNITS = 0, 1, 2, 3  # cells a rank writes for each server
_ANSWERED, _TOOK = 0, 1  # cells a server writes for each rank


def message_tensors(
    parameters: Mapping[str, Tensor], ranks: int, slices: Sequence[Sequence[Slice]]
) -> dict[str, Tensor]:
    """What ranks and servers of one host share."""
    servers = len(slices)
    shared = {f"weights/{name}": parameter.detach().to("cpu") for name, parameter in parameters.items()}
    shared["from_ranks"] = torch.zeros(ranks, servers, LINE, dtype=torch.int64)
    shared["from_servers"] = torch.zeros(servers, ranks, LINE, dtype=torch.int64)
    shared["status"] = torch.zeros(servers, LINE, dtype=torch.float64)
    shared["bells"] = torch.zeros(ranks + servers, LINE, dtype=torch.int64)  # one to wake each process
    for rank in range(ranks):
        shared |= slot_tensors(parameters, f"gradients/{rank}", servers)
    return shared


def _cells(shared: Tensor) -> Any:
    """Numbers of shared memory, one by one: a memoryview costs less than half of what numpy does."""
    numbers: Any = shared.numpy()
    return memoryview(numbers)


class MemoryClientEnd:
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
        self._slots = [GradientSlot(shared, f"gradients/{rank}", items, server) for server, items in enumerate(slices)]
        self._weights = [shared[f"weights/{name}"] for name in copies]
        self._copies = list(copies.values())
        self._pulled = nbytes(list(own.values()))
        ranks = len(shared["from_ranks"])
        self._bell = Bell(shared["bells"][rank])
        self._servers = [Bell(shared["bells"][ranks + server]) for server in range(len(slices))]
        self._posted = 0
        self.rate: float | None = None

    def send(self, kind: int, gradients: Mapping[str, Tensor | None], units: float = 0.0) -> None:
        self._settle()
        self._posted += 1
        with self._clock.during("communication"):
            for server, slot in enumerate(self._slots):
                if kind == PUSH:
                    self._clock.count(slot.put(gradients))
                self._mine[self._rank, server, _KIND] = kind
                self._mine[self._rank, server, _UNITS] = as_bits(units)
                if fence:
                    fence()
                self._mine[self._rank, server, _POSTED] = self._posted
                self._servers[server].ring()

    def _settle(self) -> None:
        """Wait until every server has answered the last message."""
        with self._clock.during("wait"):
            wait_until(
                lambda: not self._unanswered(),
                lambda: f"server {self._unanswered()[0]} of {len(self._slices)} did not reach message {self._posted}",
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
        for own, weights in zip(self._copies, self._weights, strict=True):
            own.copy_(weights)


class MemoryServerEnd:
    """A server's side in shared memory: messages are read where they lie, answers are counters."""

    def __init__(self, shared: Mapping[str, Tensor], clock: Clock, server: int, ranks: int, slices: Sequence[Slice]):
        self._clock, self._server = clock, server
        self._theirs = _cells(shared["from_ranks"])
        self._mine = _cells(shared["from_servers"])
        self._status = _cells(shared["status"])
        self._slots = [GradientSlot(shared, f"gradients/{rank}", slices, server) for rank in range(ranks)]
        self._taken = [0] * ranks
        self._bell = Bell(shared["bells"][ranks + server])
        self._ranks = [Bell(shared["bells"][rank]) for rank in range(ranks)]

    def take(self, awaited: Callable[[], bool]) -> Message | None:
        """The next message of any rank, the least served first; None once nobody is awaited any more."""
        found: list[int] = []

        def come() -> bool:
            found[:] = self._come()
            return bool(found) or not awaited()

        with self._clock.during("wait"):
            wait_until(
                come,
                lambda: f"none of the ranks {[*range(len(self._taken))]} did reach its next message",
                bell=self._bell,
            )
        return self._open(min(found, key=lambda rank: self._taken[rank])) if found else None

    def take_round(self) -> list[Message]:
        """The next message of every rank, in their order.

        Asleep until the first message comes; that rank waits from then on, so there is a core to stay awake on.
        """

        def lack() -> str:
            missing = sorted({*range(len(self._taken))} - {*self._come()})
            return f"the ranks {missing} did not reach their next message"

        with self._clock.during("wait"):
            wait_until(lambda: bool(self._come()), lack, bell=self._bell)
            wait_until(lambda: len(self._come()) == len(self._taken), lack, bell=self._bell, awake=MOMENT)
        return [self._open(rank) for rank in range(len(self._taken))]

    def _come(self) -> list[int]:
        """Ranks of which a message has come and was not taken yet."""
        return [rank for rank, taken in enumerate(self._taken) if self._theirs[rank, self._server, _POSTED] > taken]

    def _open(self, rank: int) -> Message:
        if fence:
            fence()
        self._taken[rank] += 1
        kind, seen = self._theirs[rank, self._server, _KIND], self._theirs[rank, self._server, _SEEN]
        units = from_bits(self._theirs[rank, self._server, _UNITS])
        return Message(rank, kind, seen, self._slots[rank].get() if kind == PUSH else [], units)

    def reply(self, sender: int, kind: int, updates: int, rate: float, took: int) -> None:
        """Answer a message; `took` are the nanoseconds of the update made with it."""
        self._mine[self._server, sender, _TOOK] = took
        self._status[self._server, UPDATES] = updates
        self._status[self._server, RATE] = rate
        if fence:
            fence()
        self._mine[self._server, sender, _ANSWERED] = self._taken[sender]
        self._ranks[sender].ring()

    def hand_out(self, updates: int, rate: float) -> None:
        """Status and weights for rank 0, which fetches them between steps: they lie where every rank sees them."""
