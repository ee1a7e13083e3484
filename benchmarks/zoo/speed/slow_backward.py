"""A slow backward pass: a hand-written autograd function takes its gradient row by row, in Python.

Cure: write the gradient for the whole tensor (`grad * (x > 0)`), or leave it to autograd.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

import manyhands as mh

CAUSE = "backward"
STRATEGY = "single"
OPTIONS = ()
CURE = "take the gradient of the whole tensor at once"


def make_data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(12800, 1, 28, 28, generator=generator), torch.randint(10, (12800,), generator=generator)


class RowByRow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        rows = [
            torch.where(value > 0, piece, 0.0)
            for sample, slope in zip(x, grad, strict=True)
            for value, piece in zip(sample, slope, strict=True)
        ]
        return torch.stack(rows).reshape(x.shape)


class Rectifier(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return RowByRow.apply(x)


def make_model(activation: type[nn.Module] = Rectifier) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5), activation(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip


task = mh.Task(
    make_model,
    make_data,
    nn.functional.cross_entropy,
    functools.partial(torch.optim.SGD, lr=0.05),
    batch_size=128,
    epochs=4,
    name="slow_backward",
)
healthy = task.replace(model=functools.partial(make_model, nn.ReLU), name="slow_backward (healthy)")
