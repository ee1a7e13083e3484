"""A long start for a short job: opening the data takes eight seconds, training them one or two.

Cure: prepare the data once and keep them in a file that opens at once.
"""

from __future__ import annotations

import functools
import time

import torch
from torch import Tensor, nn

import manyhands as mh

CAUSE = "start"
STRATEGY = "single"
OPTIONS = ()
CURE = "prepare the data once and store them"


def make_data(preparing: float = 8.0) -> tuple[Tensor, Tensor]:
    time.sleep(preparing)
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(6400, 1, 28, 28, generator=generator)
    return images, (images.mean((1, 2, 3)) > 0).long()


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 2),
    )  # fmt: skip


task = mh.Task(
    make_model,
    make_data,
    nn.functional.cross_entropy,
    functools.partial(torch.optim.SGD, lr=0.05),
    batch_size=64,
    epochs=1,
    name="slow_start",
)
healthy = task.replace(train=functools.partial(make_data, 0.0), epochs=5, name="slow_start (healthy)")
