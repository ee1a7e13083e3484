"""Too many ranks: eight on two cores take turns computing, and every step waits for the last one.

Cure: as many ranks as there are cores.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

import manyhands as mh

CAUSE = "cores"
STRATEGY = "ddp"
OPTIONS = ("--ranks", "8")
HEALTHY_OPTIONS = ("--ranks", "2")
CURE = "ranks=2"


def make_data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(12800, 1, 28, 28, generator=generator), torch.randint(10, (12800,), generator=generator)


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip


task = mh.Task(
    make_model,
    make_data,
    nn.functional.cross_entropy,
    functools.partial(torch.optim.SGD, lr=0.05),
    batch_size=128,
    epochs=4,
    name="many_ranks",
)
healthy = task.replace(name="many_ranks (healthy)")
