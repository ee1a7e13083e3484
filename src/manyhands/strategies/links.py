"""Tensors between stages: send and receive that autograd follows, over whatever carries this world's messages.

    sender                                   receiver
      token = send(tensors, to)   ------>      tensors = receive(source)        forward: activations
      token.backward()            <------      loss.backward()                  backward: their gradients

A message is a header (how many tensors; type, shape and whether each wants a gradient), then the tensors
themselves, so sizes may change from step to step. Integers and tensors without gradient pass forward only. Sends
never wait for the receiver: what is under way is kept in hand until `drain`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import RankFailed

HEADER = 64  # numbers in a header; a message with more than fit there sends the rest behind it
DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64, torch.complex128,
)  # fmt: skip


class Booking(Protocol):
    """Who is told how long things took and how many bytes left: a Clock is one."""

    def enter(self, phase: str) -> int: ...
    def count(self, payload: int) -> None: ...


class Unbooked:
    def enter(self, phase: str) -> int:
        return 0

    def count(self, payload: int) -> None:
        return


class Links:
    """One process's lines to the other stages. `group` numbers are global ranks of torch.distributed."""

    def __init__(self, device: torch.device | None = None, book: Booking | None = None):
        self.device = device or torch.device("cpu")
        self.book: Booking = book or Unbooked()
        self._under_way: list[tuple[dist.Work | None, Tensor]] = []

    def send(self, tensors: Sequence[Tensor], to: int, tag: int = 0) -> None:
        """Hand tensors over and go on."""
        self.book.enter("communication")
        numbers = [len(tensors)]
        for tensor in tensors:
            numbers += [DTYPES.index(tensor.dtype), int(tensor.requires_grad), tensor.dim(), *tensor.shape]
        header = torch.zeros(HEADER, dtype=torch.int64)
        header[0] = len(numbers)
        header[1 : 1 + len(numbers)] = torch.tensor(numbers[: HEADER - 1])
        self._post(header, to, tag)
        if len(numbers) > HEADER - 1:
            self._post(torch.tensor(numbers[HEADER - 1 :]), to, tag)
        for tensor in tensors:
            payload = tensor.detach().to("cpu").contiguous()
            if payload.numel():
                self._post(payload, to, tag)
            self.book.count(payload.numel() * payload.element_size())

    def _post(self, tensor: Tensor, to: int, tag: int) -> None:
        self._under_way = [(work, kept) for work, kept in self._under_way if work is not None and not work.is_completed()]
        self._under_way.append((dist.isend(tensor, dst=to, tag=tag), tensor))

    def receive(self, source: int, tag: int = 0) -> list[Tensor]:
        """Wait for the next message; its tensors want gradients where the sender's did."""
        self.book.enter("wait")
        header = torch.empty(HEADER, dtype=torch.int64)
        dist.recv(header, src=source, tag=tag)
        self.book.enter("communication")
        length = int(header[0])
        numbers = header[1 : 1 + length].tolist()
        if length > HEADER - 1:
            rest = torch.empty(length - (HEADER - 1), dtype=torch.int64)
            dist.recv(rest, src=source, tag=tag)
            numbers += rest.tolist()
        tensors, at = [], 1
        for _ in range(numbers[0]):
            dtype, wants_gradient, dims = DTYPES[numbers[at]], bool(numbers[at + 1]), numbers[at + 2]
            shape = numbers[at + 3 : at + 3 + dims]
            at += 3 + dims
            tensor = torch.empty(shape, dtype=dtype)
            if tensor.numel():
                dist.recv(tensor, src=source, tag=tag)
            tensors.append(tensor.to(self.device).requires_grad_(wants_gradient))
        return tensors

    def drain(self) -> None:
        """Wait until everything sent has left."""
        for work, _ in self._under_way:
            if work is not None:
                work.wait()
        self._under_way.clear()


class _Send(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, links: Links, to: int, tags: tuple[int, int], *tensors: Tensor) -> Tensor:
        ctx.links, ctx.to, ctx.tag = links, to, tags[1]
        ctx.wanted = [tensor.requires_grad for tensor in tensors]
        links.send(tensors, to, tags[0])
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Any, ...]:
        gradients = iter(ctx.links.receive(ctx.to, ctx.tag))
        ctx.links.book.enter("backward")
        return (None, None, None, *(next(gradients).detach() if wanted else None for wanted in ctx.wanted))


class _Receive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, links: Links, source: int, tags: tuple[int, int], trigger: Tensor) -> tuple[Tensor, ...]:
        tensors = links.receive(source, tags[0])
        ctx.links, ctx.source, ctx.tag = links, source, tags[1]
        ctx.wanted = [tensor.requires_grad for tensor in tensors]
        detached = [tensor.detach() for tensor in tensors]
        ctx.mark_non_differentiable(*(t for t, wanted in zip(detached, ctx.wanted, strict=True) if not wanted))
        return tuple(detached)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        ctx.links.send([g for g, wanted in zip(gradients, ctx.wanted, strict=True) if wanted], ctx.source, ctx.tag)
        ctx.links.book.enter("backward")
        return None, None, None, None


def send(tensors: Sequence[Tensor], to: int, links: Links | None = None, tags: tuple[int, int] = (0, 1)) -> Tensor:
    """Send tensors to rank `to`; call `backward()` on the result to receive their gradients and go on backward.

    `tags` mark the message and its answer, for ranks that exchange several at a time.
    """
    if not any(tensor.requires_grad for tensor in tensors):
        raise RankFailed(
            "nothing that is sent wants a gradient, so no backward pass could follow it; train at least one layer before it"
        )
    return _Send.apply(links or _plain(), to, tags, *tensors)  # type: ignore[no-any-return]


def receive(source: int, links: Links | None = None, tags: tuple[int, int] = (0, 1)) -> tuple[Tensor, ...]:
    """Receive what rank `source` sent; when backward reaches these tensors, their gradients are sent back."""
    trigger = torch.zeros((), requires_grad=True)  # makes autograd visit us on its way back
    return _Receive.apply(links or _plain(), source, tags, trigger)  # type: ignore[no-any-return]


_default: Links | None = None


def _plain() -> Links:
    global _default
    _default = _default or Links()
    return _default


