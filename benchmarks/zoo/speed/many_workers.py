"""Too many loader workers: eight per rank compute on the cores that the ranks train on.

Cure: fewer workers; what they compute does not get cheaper by being done in more processes.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import manyhands as mh

CAUSE = "cores"
STRATEGY = "ddp"
OPTIONS = ("--ranks", "2", "--loader-workers", "8")
HEALTHY_OPTIONS = ("--ranks", "2")
CURE = "loader_workers=0 or 1"


class Curves(Dataset):
    """Curves that are computed when they are asked for; `points` says how exactly."""

    def __init__(self, count: int, points: int):
        self.count, self.points = count, points

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        total = 0.0
        for point in range(self.points):
            total += math.sin(index * 0.37 + point)
        curve = torch.linspace(total, total + index % 7, 784).sin().reshape(1, 28, 28)
        return curve, index % 10


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip


task = mh.Task(
    make_model,
    Curves(12800, points=300),
    nn.functional.cross_entropy,
    functools.partial(torch.optim.SGD, lr=0.05),
    batch_size=128,
    epochs=4,
    name="many_workers",
)
healthy = task.replace(train=Curves(12800, points=0), name="many_workers (healthy)")
