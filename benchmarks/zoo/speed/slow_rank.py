"""A straggler: rank 1 is slow in its forward pass, as on a host that throttles, and rank 0 waits for it in every step.

Cure: take rank 1 off its slow host, or train without it.
"""

from __future__ import annotations

import functools
import os
import time

import torch
from torch import Tensor, nn

import manyhands as mh

CAUSE = "straggler"
RANK = 1
STRATEGY = "ddp"
OPTIONS = ("--ranks", "2")
CURE = "train without rank 1, or find what slows it"


def make_data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(12800, 1, 28, 28, generator=generator), torch.randint(10, (12800,), generator=generator)


class Throttled(nn.Module):
    """Passes its input on; on rank 1 that takes a while."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training and os.environ.get("RANK") == "1":
            time.sleep(0.03)
        return x


def make_model(*first: nn.Module) -> nn.Module:
    return nn.Sequential(
        *first, nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip


def make_throttled() -> nn.Module:
    return make_model(Throttled())


task = mh.Task(
    make_throttled,
    make_data,
    nn.functional.cross_entropy,
    functools.partial(torch.optim.SGD, lr=0.05),
    batch_size=128,
    epochs=4,
    name="slow_rank",
)
healthy = task.replace(model=make_model, name="slow_rank (healthy)")
