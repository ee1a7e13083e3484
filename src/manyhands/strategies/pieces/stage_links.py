"""Tensors between stages: send and receive that autograd follows, over whatever carries this world's messages.

    sender                                   receiver
      token = send(tensors, to)   ------>      tensors = receive(source)        forward: activations
      token.backward()            <------      loss.backward()                  backward: their gradients

A message is a header (how many tensors; type, shape, strides and whether each wants a gradient), then the tensors
themselves as they lie in memory, so sizes may change from step to step and layers see what they would see uncut.
Integers and tensors without gradient pass forward only; where nothing that was sent wants a gradient, no answer comes
and the token wants none. Sends never wait for the receiver: what is under way is kept in hand until `drain`.

Cost of a message: its tensors' bytes and a header of 512; the header is not counted as payload.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...errors import BadInput
from ...record.clock import Clock
from .sends import Sends

HEADER = 64  # numbers in a header; a message with more than fit there sends the rest behind it
DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64, torch.complex128, torch.uint16, torch.uint32, torch.uint64,
)  # fmt: skip
NONE = torch.empty(0)  # stands for a gradient that no backward pass reached
_NUMBERS = {dtype: number for number, dtype in enumerate(DTYPES)}


class Links:
    """One process's lines to the others of its world; processes are named by their ranks in torch.distributed.

    Messages between two ranks are told apart by `tag`; those of one tag arrive in the order they were sent.
    """

    def __init__(
        self,
        device: torch.device | None = None,
        clock: Clock | None = None,
        meanwhile: Callable[[], bool] | None = None,  # something to do rather than wait; says whether there was any
    ):
        self.device = device or torch.device("cpu")
        self.clock = clock or Clock()  # is told how long things took and how many bytes left
        self._meanwhile = meanwhile
        self._sends = Sends()

    def send(self, tensors: Sequence[Tensor], to: int, tag: int = 0) -> None:
        """Hand tensors over and go on."""
        self.clock.enter("communication")
        numbers, packed = [len(tensors)], [_plain(tensor) for tensor in tensors]
        for tensor, payload in zip(tensors, packed, strict=True):
            if tensor.dtype not in _NUMBERS or tensor.layout != torch.strided:
                raise BadInput(f"a tensor of {tensor.dtype} and {tensor.layout} cannot be sent; send dense numbers")
            kind = [_NUMBERS[tensor.dtype], int(tensor.requires_grad), tensor.dim()]
            numbers += [*kind, *payload.shape, *payload.stride()]
        fits = HEADER - 1
        padding = [0] * (fits - len(numbers))
        self._sends.send(torch.tensor([len(numbers), *numbers[:fits], *padding]), to, tag)
        if len(numbers) > fits:
            self._sends.send(torch.tensor(numbers[fits:]), to, tag)
        for payload in packed:
            if payload.numel():
                self._sends.send(payload.as_strided((payload.numel(),), (1,)), to, tag)
                self.clock.count(payload.nbytes)

    def receive(self, source: int, tag: int = 0) -> tuple[list[Tensor], list[bool]]:
        """Wait for the next message: its tensors, and which of them want a gradient."""
        header = torch.empty(HEADER, dtype=torch.int64)
        coming = dist.irecv(header, src=source, tag=tag)
        assert coming is not None
        if self._meanwhile is not None:
            self.clock.enter("backward")
            while not coming.is_completed() and self._meanwhile():
                pass
        self.clock.enter("wait")
        coming.wait()
        self.clock.enter("communication")
        length, *numbers = header.tolist()
        if length > HEADER - 1:
            rest = torch.empty(length - (HEADER - 1), dtype=torch.int64)
            dist.recv(rest, src=source, tag=tag)
            numbers += rest.tolist()
        tensors, wanted, at = [], [], 1
        for _ in range(numbers[0]):
            dtype, wants_gradient, dims = numbers[at : at + 3]
            shape, strides = numbers[at + 3 : at + 3 + dims], numbers[at + 3 + dims : at + 3 + 2 * dims]
            at += 3 + 2 * dims
            payload = torch.empty(math.prod(shape), dtype=DTYPES[dtype])
            if payload.numel():
                dist.recv(payload, src=source, tag=tag)
            tensors.append(payload.as_strided(shape, strides).to(self.device))
            wanted.append(bool(wants_gradient))
        return tensors, wanted

    def drain(self) -> None:
        """Wait until everything sent has left."""
        self._sends.drain()


def _plain(tensor: Tensor) -> Tensor:
    """What is in memory as it is to be read: views that conjugate or negate on the way out are written down."""
    return _without_gaps(tensor.detach().to("cpu").resolve_conj().resolve_neg())


def _without_gaps(tensor: Tensor) -> Tensor:
    """The tensor itself if its numbers lie close together, in whatever order, else a copy that does."""
    if tensor.layout != torch.strided or tensor.is_contiguous():
        return tensor
    close = torch.empty_like(tensor, device="meta").stride()  # keeps the order of what has no gaps
    return tensor if tensor.stride() == close else tensor.contiguous()


class _Send(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, links: Links, to: int, tag: int, *tensors: Tensor) -> Tensor:
        ctx.links, ctx.to, ctx.tag = links, to, tag
        ctx.wanted = [tensor.shape if tensor.requires_grad else None for tensor in tensors]
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Any, ...]:
        answer = iter(ctx.links.receive(ctx.to, ctx.tag)[0])
        ctx.links.clock.enter("backward")
        gradients = [(shape, next(answer)) if shape is not None else (None, NONE) for shape in ctx.wanted]
        return (None, None, None, *(gradient if gradient.shape == shape else None for shape, gradient in gradients))


class _Receive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, owed: Owed, tensors: list[Tensor], trigger: Tensor) -> tuple[Tensor, ...]:
        ctx.owed = owed
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(t for t, wanted in zip(tensors, owed.wanted, strict=True) if not wanted))
        return tuple(tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, None, None]:
        ctx.owed.pay(gradients)
        ctx.owed.links.clock.enter("backward")
        return None, None, None


class Owed:
    """The answer that the sender of a message waits for: gradients of its tensors that want one."""

    def __init__(self, source: int, links: Links, tag: int, wanted: list[bool]):
        self.source, self.links, self.tag, self.wanted = source, links, tag, wanted
        self.open = any(wanted)

    def pay(self, gradients: Sequence[Tensor | None]) -> None:
        self.open = False
        wanted = [gradient for gradient, wanted in zip(gradients, self.wanted, strict=True) if wanted]
        self.links.send([NONE if gradient is None else gradient for gradient in wanted], self.source, self.tag)
        if self.links is _PLAIN:
            self.links.drain()

    def settle(self) -> None:
        """After the backward pass: where it did not come by (a detach, say), the answer is that there is none."""
        if self.open:
            self.pay([None] * len(self.wanted))


def send(tensors: Sequence[Tensor], to: int, links: Links | None = None, tags: tuple[int, int] = (0, 1)) -> Tensor:
    """Send tensors to rank `to`; call `backward()` on the result to receive their gradients and go on backward.

    `tags` mark the message and its answer, for ranks that exchange several at a time.
    """
    links = links or _PLAIN
    links.send(tensors, to, tags[0])
    return _Send.apply(links, to, tags[1], *tensors)  # type: ignore[no-any-return]


def receive(source: int, links: Links | None = None, tags: tuple[int, int] = (0, 1)) -> tuple[Tensor, ...]:
    """Receive what rank `source` sent; when backward reaches these tensors, their gradients are sent back.

    Without `links` of your own that backward pass waits until the gradients have left; with them, `drain` does.
    """
    return accept(source, links or _PLAIN, tags)[0]


def accept(source: int, links: Links, tags: tuple[int, int]) -> tuple[tuple[Tensor, ...], Owed]:
    """`receive`, and what is owed for it: for those who must answer even where no backward pass comes by."""
    tensors, wanted = links.receive(source, tags[0])
    owed = Owed(source, links, tags[1], wanted)
    if not owed.open:
        return tuple(tensors), owed
    trigger = torch.zeros((), requires_grad=True)  # makes autograd visit us on its way back
    return _Receive.apply(owed, tensors, trigger), owed


_PLAIN = Links()  # of loops that bring none of their own
