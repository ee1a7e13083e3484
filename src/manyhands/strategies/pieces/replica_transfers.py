"""What travels between replicas of one process: weights, stretches of a batch, outputs and gradients.

GPUs of their own are served by torch.nn.parallel.comm. Replicas that share a device copy within it, so that each
step costs there what it is. The clock is told everything: how long, and how many bytes left a replica.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import comm

from ...data import nest
from ...record.clock import Clock
from .flat_buffers import through_flat


class Replicate(torch.autograd.Function):
    """Weights to every replica; back come their gradients, summed in the order of the replicas."""

    @staticmethod
    def forward(ctx: Any, clock: Clock, devices: Sequence[torch.device], *state: Tensor) -> tuple[Tensor, ...]:
        ctx.clock, ctx.devices, ctx.length = clock, devices, len(state)
        ctx.set_materialize_grads(False)
        with clock.during("communication"):
            own = [tensor.detach() for tensor in state]  # the first replica works on the weights themselves
            rows = [own, *_broadcast(own, devices)]
            clock.count((len(devices) - 1) * _bytes(own))
        ctx.mark_non_differentiable(
            *(copied for row in rows for copied, tensor in zip(row, state, strict=True) if not tensor.requires_grad)
        )
        return tuple(tensor for row in rows for tensor in row)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        length = ctx.length
        rows = [gradients[start : start + length] for start in range(0, len(gradients), length)]
        reached = [index for index in range(length) if any(row[index] is not None for row in rows)]
        with ctx.clock.during("communication"):
            whole = [[_or_zeros(row[index], rows, index) for index in reached] for row in rows]
            ctx.clock.count(sum(_bytes(row) for row in whole[1:]))
            sums = dict(zip(reached, _reduce(whole, ctx.devices), strict=True))
        return None, None, *(sums.get(index) for index in range(length))


class Gather(torch.autograd.Function):
    """Parts joined on one device; back go the stretches of the gradient."""

    @staticmethod
    def forward(ctx: Any, clock: Clock, device: torch.device, *parts: Tensor) -> Tensor:
        ctx.clock, ctx.devices, ctx.lengths = clock, [part.device for part in parts], [part.shape[0] for part in parts]
        with clock.during("communication"):
            clock.count(_bytes(parts[1:]))
            if _own_gpus(ctx.devices):
                return comm.gather(parts, 0, device)
            return torch.cat([part.to(device) for part in parts])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        with ctx.clock.during("communication"):
            parts = gradients[0].split(ctx.lengths)
            ctx.clock.count(_bytes(parts[1:]))
            sent = [part.to(device, copy=True) for part, device in zip(parts[1:], ctx.devices[1:], strict=True)]
            return None, None, parts[0].to(ctx.devices[0]), *sent


def scatter(parts: Sequence[Any], devices: Sequence[torch.device], clock: Clock) -> list[Any]:
    """The stretches of a batch on the devices of their replicas; only what leaves the first is a copy."""
    clock.count(_bytes(list(nest.leaves(list(parts[1:])))))
    first = nest.each(parts[0], lambda tensor: tensor.to(devices[0]))
    others = zip(parts[1:], devices[1:], strict=True)
    return [first, *(nest.each(part, partial(Tensor.to, device=device, copy=True)) for part, device in others)]


def _broadcast(tensors: list[Tensor], devices: Sequence[torch.device]) -> list[list[Tensor]]:
    """Copies for every replica but the first, coalesced: many small tensors travel as one."""
    if _own_gpus(devices) and len(devices) > 1:
        return [list(copied) for copied in comm.broadcast_coalesced(tensors, devices)[1:]]
    return [
        [copied.data for copied in through_flat(tensors, partial(Tensor.to, device=device))] for device in devices[1:]
    ]


def _reduce(rows: list[list[Tensor]], devices: Sequence[torch.device]) -> Sequence[Tensor]:
    """Sums over replicas on the first device."""
    if len(rows) == 1 or not rows[0]:
        return rows[0]
    if _own_gpus(devices):
        return comm.reduce_add_coalesced(rows, devices[0].index)
    sums = rows[0]
    for row in rows[1:]:
        sums = [total + other.to(devices[0]) for total, other in zip(sums, row, strict=True)]
    return sums


def _or_zeros(gradient: Tensor | None, rows: Sequence[Sequence[Tensor | None]], index: int) -> Tensor:
    """A replica whose samples did not reach a parameter adds nothing to it."""
    if gradient is not None:
        return gradient
    return torch.zeros_like(next(row[index] for row in rows if row[index] is not None))  # type: ignore[arg-type]


def _own_gpus(devices: Sequence[torch.device]) -> bool:
    return all(device.type == "cuda" for device in devices) and len(set(devices)) == len(devices)


def _bytes(tensors: Sequence[Tensor]) -> int:
    return sum(_payload(tensor) for tensor in tensors)


def _payload(tensor: Tensor) -> int:
    if tensor.is_sparse:
        return _payload(tensor._values()) + _payload(tensor._indices())
    return tensor.nbytes
