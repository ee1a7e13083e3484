"""An uneven cut: the pipeline is cut by the size of its parameters, but the time is in the first layers, on rank 0.

Cure: `pipeline:balance=time`, the default.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

import manyhands as mh

CAUSE = "straggler"
RANK = 0
STRATEGY = "pipeline:balance=parameters"
OPTIONS = ("--ranks", "2")
HEALTHY_STRATEGY = "pipeline"
CURE = "balance=time"


def make_data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(6400, 3, 24, 24, generator=generator), torch.randint(10, (6400,), generator=generator)


def make_model() -> nn.Module:
    """Convolutions with few parameters and much to compute, before layers of the opposite kind."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(),
        nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(),
        nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10),
    )  # fmt: skip


task = mh.Task(
    make_model,
    make_data,
    nn.functional.cross_entropy,
    functools.partial(torch.optim.SGD, lr=0.02),
    batch_size=128,
    epochs=6,
    name="uneven_cut",
)
healthy = task.replace(name="uneven_cut (healthy)")
