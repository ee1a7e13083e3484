"""A forward pass that waits: a layer asks a service for its features and sleeps until they come, on every rank.

Cure: fetch the features beforehand, with the data.
"""

from __future__ import annotations

import functools
import time

import torch
from torch import Tensor, nn

import manyhands as mh

CAUSE = "forward"
STRATEGY = "ddp"
OPTIONS = ("--ranks", "2")
CURE = "fetch the features with the data"


def make_data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(12800, 1, 28, 28, generator=generator), torch.randint(10, (12800,), generator=generator)


class Features(nn.Module):
    def __init__(self, latency: float):
        super().__init__()
        self.latency = latency

    def forward(self, x: Tensor) -> Tensor:
        if self.latency:
            time.sleep(self.latency)
        return x


def make_model(latency: float = 0.02) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2), Features(latency),
        nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip


task = mh.Task(
    make_model,
    make_data,
    nn.functional.cross_entropy,
    functools.partial(torch.optim.SGD, lr=0.05),
    batch_size=128,
    epochs=4,
    name="waiting_layer",
)
healthy = task.replace(model=functools.partial(make_model, latency=0.0), name="waiting_layer (healthy)")
