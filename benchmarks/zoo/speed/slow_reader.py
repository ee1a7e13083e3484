"""Reading waits: every sample comes from a slow disk, and the step stands still meanwhile.

Cure: loader workers read ahead (`--loader-workers 4`); waiting costs no core, so more workers than cores help.
"""

from __future__ import annotations

import functools
import time

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import manyhands as mh

CAUSE = "loading"
STRATEGY = "single"
OPTIONS = ()
CURE = "loader_workers=4"


class Images(Dataset):
    """Small images with a class; `wait` seconds pass before one is there."""

    def __init__(self, count: int, wait: float):
        generator = torch.Generator().manual_seed(0)
        self.images = torch.randn(count, 1, 28, 28, generator=generator)
        self.classes = torch.randint(10, (count,), generator=generator)
        self.wait = wait

    def __len__(self) -> int:
        return len(self.classes)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if self.wait:
            time.sleep(self.wait)
        return self.images[index], self.classes[index]


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


task = mh.Task(
    make_model,
    Images(6400, wait=0.001),
    nn.functional.cross_entropy,
    functools.partial(torch.optim.SGD, lr=0.05),
    batch_size=64,
    epochs=4,
    name="slow_reader",
)
healthy = task.replace(train=Images(6400, wait=0.0), name="slow_reader (healthy)")
