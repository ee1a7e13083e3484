"""Messages between ranks and servers on any hosts, as point-to-point messages of torch.distributed.

header    kind, updates seen, units, bytes that follow, and for each slice: none, whole, or the number of rows
payload   the gradients as bytes;  back come the server's status and its slice of the weights as bytes
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from ...record.clock import Clock
from .gradient_slots import WHOLE, from_parts, nbytes, parts
from .parameter_slices import Slice
from .sends import Sends
from .server_messages import PASS, PUSH, RATE, UPDATES, Gradients, Message, as_bits, book_update, from_bits

TOOK = 2  # behind what a server tells in any case: nanoseconds of the update it answers


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


class NetworkClientEnd:
    """A rank's side over torch.distributed: a header with the sizes, then the gradients; weights come back."""

    def __init__(self, clock: Clock, ranks: int, slices: Sequence[Sequence[Slice]], own: Mapping[str, Tensor]):
        self._clock, self._ranks, self._slices = clock, ranks, slices
        self._pieces = [[item.of(own[item.name].detach()) for item in items] for items in slices]
        self._seen = [0] * len(slices)
        self._sends = Sends()
        self.rate: float | None = None

    def send(self, kind: int, gradients: Mapping[str, Tensor | None], units: float = 0.0) -> None:
        with self._clock.during("communication"):
            self._sends.drain()
            for server, items in enumerate(self._slices):
                found = [parts(gradients[item.name], item) for item in items] if kind == PUSH else []
                line = pack([tensor for _, carried in found for tensor in carried])
                counts = [count for count, _ in found] or [0] * len(items)
                header = [kind, self._seen[server], as_bits(units), len(line), *counts]
                self._sends.send(torch.tensor(header), self._ranks + server)
                if len(line):
                    self._sends.send(line, self._ranks + server)
                self._clock.count(sum(nbytes(carried) for _, carried in found))

    def receive(self, kind: int) -> None:
        for server in range(len(self._slices)):
            with self._clock.during("wait"):
                book_update(self._clock, self._hear(server))
            if kind == PUSH:
                with self._clock.during("communication"):
                    self._fetch_from(server)

    def fetch(self) -> None:
        for server in range(len(self._slices)):
            self._hear(server)
            self._fetch_from(server)

    def _hear(self, server: int) -> int:
        """Take in a server's status; returns the nanoseconds of its last update."""
        status = torch.empty(3, dtype=torch.float64)
        dist.recv(status, self._ranks + server)
        self._seen[server] = int(status[UPDATES])
        if server == 0:
            self.rate = float(status[RATE])
        return int(status[TOOK])

    def _fetch_from(self, server: int) -> None:
        pieces = self._pieces[server]
        line = torch.empty(sum(_padded(piece) for piece in pieces), dtype=torch.uint8)
        dist.recv(line, self._ranks + server)
        for piece, received in zip(pieces, unpack(line, _forms(pieces)), strict=True):
            piece.copy_(received)


class NetworkServerEnd:
    """A server's side over torch.distributed. `answer_all`: ranks wait for an answer to every message."""

    def __init__(
        self, clock: Clock, ranks: int, slices: Sequence[Slice], weights: Mapping[str, Tensor], answer_all: bool
    ):
        self._clock, self._ranks, self._answer_all = clock, ranks, answer_all
        self._weights = [weights[item.name].detach() for item in slices]
        self._sends = [Sends() for _ in range(ranks)]

    def take(self, awaited: Callable[[], bool]) -> Message | None:
        return self._take(None)

    def take_round(self) -> list[Message]:
        return [self._take(rank) for rank in range(self._ranks)]

    def _take(self, source: int | None) -> Message:
        header = torch.empty(4 + len(self._weights), dtype=torch.int64)
        with self._clock.during("wait"):
            sender = dist.recv(header, source)
        kind, seen, units, size, *counts = header.tolist()
        line = torch.empty(size, dtype=torch.uint8)
        if size:
            with self._clock.during("communication"):
                dist.recv(line, sender)
        return Message(sender, kind, seen, self._gradients(line, counts) if kind == PUSH else [], from_bits(units))

    def _gradients(self, line: Tensor, counts: Sequence[int]) -> Gradients:
        forms = []
        for weight, count in zip(self._weights, counts, strict=True):
            if count == WHOLE:
                forms.append((weight.shape, weight.dtype))
            elif count >= 0:
                forms += [(torch.Size([count]), torch.int64), (torch.Size([count, *weight.shape[1:]]), weight.dtype)]
        carried = iter(unpack(line, forms))
        return [
            from_parts(
                count, [next(carried) for _ in range(1 if count == WHOLE else 2 if count >= 0 else 0)], weight.shape
            )
            for weight, count in zip(self._weights, counts, strict=True)
        ]

    def reply(self, sender: int, kind: int, updates: int, rate: float, took: int) -> None:
        if kind == PASS and not self._answer_all:
            return
        with self._clock.during("communication"):
            sends = self._sends[sender]
            sends.drain()
            sends.send(torch.tensor([updates, rate, took], dtype=torch.float64), sender)
            if kind == PUSH:
                sends.send(pack(self._weights), sender)
                self._clock.count(nbytes(self._weights))

    def hand_out(self, updates: int, rate: float) -> None:
        dist.send(torch.tensor([updates, rate, 0], dtype=torch.float64), 0)
        dist.send(pack(self._weights), 0)


def _padded(tensor: Tensor) -> int:
    return tensor.nbytes + -tensor.nbytes % 8
