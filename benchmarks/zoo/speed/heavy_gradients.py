"""Communication: a large model on tiny batches under ddp; each step computes a little and sends all gradients.

Cure: a larger batch, or `--accumulate 8`: the same samples between updates, an eighth of the messages.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

import manyhands as mh

CAUSE = "communication"
STRATEGY = "ddp"
OPTIONS = ("--ranks", "2")
CURE = "accumulate=8, or a larger batch"


def make_data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3200, 1024, generator=generator), torch.randint(10, (3200,), generator=generator)


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10)
    )  # fmt: skip


def make_convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 32, 32)), nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(800, 10),
    )  # fmt: skip


task = mh.Task(
    make_model,
    make_data,
    nn.functional.cross_entropy,
    functools.partial(torch.optim.SGD, lr=0.01),
    batch_size=8,
    epochs=1,
    name="heavy_gradients",
)
healthy = task.replace(model=make_convolutions, batch_size=128, epochs=16, name="heavy_gradients (healthy)")
