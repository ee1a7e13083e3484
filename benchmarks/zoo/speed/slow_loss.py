"""A slow loss: it goes through the samples of a batch one by one and takes each one's distance by itself.

Cure: take the distances of the whole batch in one operation.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

import manyhands as mh

CAUSE = "forward"
STRATEGY = "single"
OPTIONS = ()
CURE = "compute the loss of the whole batch at once"


def make_data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(6400, 1, 24, 24, generator=generator)
    return images, images.mean((2, 3)).repeat(1, 16)


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 16),
    )  # fmt: skip


def distance_one_by_one(output: Tensor, target: Tensor) -> Tensor:
    total = 0.0
    with torch.no_grad():
        for sample, wanted in zip(output, target, strict=True):
            for value, goal in zip(sample, wanted, strict=True):
                total += (value - goal).abs().item()  # for the log
    return nn.functional.mse_loss(output, target) + 0 * total


task = mh.Task(
    make_model,
    make_data,
    distance_one_by_one,
    functools.partial(torch.optim.SGD, lr=0.05),
    batch_size=128,
    epochs=6,
    name="slow_loss",
)
healthy = task.replace(loss=nn.functional.mse_loss, name="slow_loss (healthy)")
