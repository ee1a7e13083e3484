"""Letters between ranks and servers: gradients one way, weights the other.

    rank                                            server
      send(PUSH, gradients)        ------>            take()          whole gradients, or rows of sparse ones
      receive(PUSH)                <------            reply()         the server's slice of the weights
      send(PASS)                   ------>            take()          a step without an update

Two ways to carry them. Memory: gradients and weights lie in tensors that all processes of a host see, and a
counter announces a letter. Network: point-to-point messages of torch.distributed, on any host. A rank has at
most one letter to each server under way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from ..measure.clock import Clock
from ..world.patience import wait_until
from ..world.shm_memory import fence
from .gradient_slots import WHOLE, GradientSlot, from_parts, nbytes, parts, rows_of
from .slices import Slice

PASS, PUSH = 0, 1
LINE = 8  # numbers of 8 bytes in a cache line
_POSTED, _KIND, _SEEN = 0, 1, 2  # cells a rank writes for each server
_UPDATES, _RATE = 0, 1  # cells a server writes for all ranks
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
    def hand_out(self) -> None:
        """Give the weights to rank 0, which fetches them between steps."""


# ---------------------------------------------------------------- memory


def mail_tensors(parameters: Mapping[str, Tensor], ranks: int, slices: Sequence[Sequence[Slice]]) -> dict[str, Tensor]:
    """What ranks and servers of one host share."""
    servers = len(slices)
    shared = {f"weights/{name}": parameter.detach().to("cpu") for name, parameter in parameters.items()}
    shared["from_ranks"] = torch.zeros(ranks, servers, LINE, dtype=torch.int64)
    shared["from_servers"] = torch.zeros(servers, ranks, LINE, dtype=torch.int64)
    shared["status"] = torch.zeros(servers, LINE, dtype=torch.float64)
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

    def __init__(self, shared: Mapping[str, Tensor], clock: Clock, rank: int, slices: Sequence[Sequence[Slice]], own: Mapping[str, Tensor]):
        self._clock, self._slices = clock, slices
        self._mine: Any = shared["from_ranks"].numpy()[rank]
        self._theirs: Any = shared["from_servers"].numpy()[:, rank, 0]
        self._status: Any = shared["status"].numpy()
        self._slots = [_slot(shared, rank, server, items) for server, items in enumerate(slices)]
        self._weights = [shared[f"weights/{name}"] for name in own]
        self._own = list(own.values())
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

    def _settle(self) -> None:
        """Wait until every server has answered the last letter."""
        with self._clock.during("wait"):
            wait_until(
                lambda: bool((self._theirs >= self._posted).all()),
                lambda: f"server {int(self._theirs.argmin())} of {len(self._slices)} did not reach the answer to letter {self._posted}",
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
        self.rate = float(self._status[0, _RATE])
        self._mine[:, _SEEN] = self._status[:, _UPDATES]
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

    def take(self, senders: Sequence[int], awaited: Callable[[], bool]) -> Letter | None:
        found: list[int] = []

        def come() -> bool:
            found[:] = [rank for rank in senders if self._theirs[rank, _POSTED] > self._taken[rank]]
            return bool(found) or not awaited()

        with self._clock.during("wait"):
            wait_until(come, lambda: f"none of the ranks {list(senders)} did reach its next letter")
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

    def hand_out(self) -> None:
        return  # the weights lie where every rank sees them


# ---------------------------------------------------------------- network


def pack(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors as one line of bytes on the CPU, each begun at a multiple of eight."""
    lines = []
    for tensor in tensors:
        line = tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
        lines += [line, line.new_zeros(-len(line) % 8)]
    return torch.cat(lines) if lines else torch.empty(0, dtype=torch.uint8)


def unpack(line: Tensor, forms: Sequence[tuple[torch.Size, torch.dtype]]) -> list[Tensor]:
    """The tensors again, as views of the bytes."""
    found, at = [], 0
    for shape, dtype in forms:
        size = shape.numel() * dtype.itemsize
        found.append(line[at : at + size].view(dtype).view(shape))
        at += size + -size % 8
    return found


def _forms(tensors: Sequence[Tensor]) -> list[tuple[torch.Size, torch.dtype]]:
    return [(tensor.shape, tensor.dtype) for tensor in tensors]


class NetworkPost:
    """A rank's side over torch.distributed: a header with the sizes, then the gradients; weights come back."""

    def __init__(self, clock: Clock, ranks: int, slices: Sequence[Sequence[Slice]], own: Mapping[str, Tensor]):
        self._clock, self._ranks, self._slices = clock, ranks, slices
        self._pieces = [[item.of(own[item.name].detach()) for item in items] for items in slices]
        self._seen = [0] * len(slices)
        self._flying: list[tuple[dist.Work | None, Tensor]] = []  # sends under way, with what they carry
        self.rate: float | None = None

    def send(self, kind: int, gradients: Mapping[str, Tensor | None]) -> None:
        with self._clock.during("communication"):
            self._land()
            for server, items in enumerate(self._slices):
                found = [parts(gradients[item.name], item.start, item.stop) for item in items] if kind == PUSH else []
                line = pack([tensor for _, carried in found for tensor in carried])
                counts = [count for count, _ in found] or [0] * len(items)
                self._fly(torch.tensor([kind, self._seen[server], len(line), *counts]), self._ranks + server)
                if len(line):
                    self._fly(line, self._ranks + server)
                self._clock.count(sum(nbytes(carried) for _, carried in found))

    def _fly(self, tensor: Tensor, target: int) -> None:
        self._flying.append((dist.isend(tensor, target), tensor))

    def _land(self) -> None:
        for work, _ in self._flying:
            if work is not None:
                work.wait()
        self._flying.clear()

    def receive(self, kind: int) -> None:
        for server in range(len(self._slices)):
            status = torch.empty(2, dtype=torch.float64)
            with self._clock.during("wait"):
                dist.recv(status, self._ranks + server)
            self._seen[server] = int(status[_UPDATES])
            if server == 0:
                self.rate = float(status[_RATE])
            if kind == PUSH:
                with self._clock.during("communication"):
                    self._fetch_from(server)

    def fetch(self) -> None:
        for server in range(len(self._slices)):
            self._fetch_from(server)

    def _fetch_from(self, server: int) -> None:
        pieces = self._pieces[server]
        line = torch.empty(sum(_padded(piece) for piece in pieces), dtype=torch.uint8)
        dist.recv(line, self._ranks + server)
        torch._foreach_copy_(pieces, unpack(line, _forms(pieces)))


class NetworkOffice:
    """A server's side over torch.distributed. `answer_all`: ranks wait for an answer to every letter."""

    def __init__(self, clock: Clock, ranks: int, slices: Sequence[Slice], weights: Mapping[str, Tensor], answer_all: bool):
        self._clock, self._ranks, self._answer_all = clock, ranks, answer_all
        self._weights = [weights[item.name].detach() for item in slices]
        self._flying: dict[int, list[tuple[dist.Work | None, Tensor]]] = {rank: [] for rank in range(ranks)}

    def take(self, senders: Sequence[int], awaited: Callable[[], bool]) -> Letter | None:
        header = torch.empty(3 + len(self._weights), dtype=torch.int64)
        with self._clock.during("wait"):
            sender = dist.recv(header, senders[0] if len(senders) == 1 else None)
        kind, seen, size, *counts = header.tolist()
        line = torch.empty(size, dtype=torch.uint8)
        if size:
            with self._clock.during("communication"):
                dist.recv(line, sender)
        return Letter(sender, kind, seen, self._gradients(line, counts) if kind == PUSH else [])

    def _gradients(self, line: Tensor, counts: Sequence[int]) -> Gradients:
        forms = []
        for weight, count in zip(self._weights, counts, strict=True):
            if count == WHOLE:
                forms.append((weight.shape, weight.dtype))
            elif count >= 0:
                forms += [(torch.Size([count]), torch.int64), (torch.Size([count, *weight.shape[1:]]), weight.dtype)]
        carried = iter(unpack(line, forms))
        return [
            from_parts(count, [next(carried) for _ in range(1 if count == WHOLE else 2 if count >= 0 else 0)], weight.shape)
            for weight, count in zip(self._weights, counts, strict=True)
        ]

    def reply(self, sender: int, kind: int, updates: int, rate: float) -> None:
        if kind == PASS and not self._answer_all:
            return
        with self._clock.during("communication"):
            self._land(sender)
            self._fly(torch.tensor([updates, rate], dtype=torch.float64), sender)
            if kind == PUSH:
                self._fly(pack(self._weights), sender)
                self._clock.count(nbytes(self._weights))

    def _fly(self, tensor: Tensor, target: int) -> None:
        self._flying[target].append((dist.isend(tensor, target), tensor))

    def _land(self, target: int) -> None:
        for work, _ in self._flying[target]:
            if work is not None:
                work.wait()
        self._flying[target].clear()

    def hand_out(self) -> None:
        dist.send(pack(self._weights), 0)


def _padded(tensor: Tensor) -> int:
    size = tensor.numel() * tensor.element_size()
    return size + -size % 8
