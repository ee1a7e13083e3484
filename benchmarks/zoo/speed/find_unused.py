"""Nothing is wrong: `find_unused` makes ddp walk the graph in every step, which a model this small does not notice.

torch warns about it in every log; measured, it costs nothing here.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

import manyhands as mh

CAUSE = "none"
STRATEGY = "ddp:find_unused=true"
OPTIONS = ("--ranks", "2")
HEALTHY_STRATEGY = "ddp"
CURE = "nothing to gain"


def make_data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(12800, 3, 24, 24, generator=generator), torch.randint(10, (12800,), generator=generator)


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(288, 10),
    )  # fmt: skip


task = mh.Task(
    make_model,
    make_data,
    nn.functional.cross_entropy,
    functools.partial(torch.optim.SGD, lr=0.05),
    batch_size=128,
    epochs=4,
    name="find_unused",
)
healthy = task.replace(name="find_unused (healthy)")
