"""A lock around everything: `locked:mode=whole` lets one rank read, compute and write while all others wait.

Cure: a strategy whose ranks compute at the same time (ddp, or locked with mode=turns).
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

import manyhands as mh

CAUSE = "lock"
STRATEGY = "locked:mode=whole"
OPTIONS = ("--ranks", "2")
HEALTHY_STRATEGY = "locked:mode=turns"
CURE = "mode=turns, or ddp"


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
    name="one_at_a_time",
)
healthy = task.replace(name="one_at_a_time (healthy)")
