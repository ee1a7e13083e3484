"""A straggler that reads slowly: rank 1's disk is slower than the others', and all wait for it in every step.

Cure: loader workers hide the slow disk; or move rank 1's data.
"""

from __future__ import annotations

import functools
import os
import time

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import manyhands as mh

CAUSE = "straggler"
RANK = 1
STRATEGY = "ddp"
OPTIONS = ("--ranks", "2")
CURE = "loader_workers, or a better disk for rank 1"


class Measurements(Dataset):
    def __init__(self, count: int, wait: float):
        generator = torch.Generator().manual_seed(0)
        self.series = torch.randn(count, 2, 256, generator=generator)
        self.labels = torch.randint(4, (count,), generator=generator)
        self.wait = wait

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if self.wait and os.environ.get("RANK") == "1":
            time.sleep(self.wait)
        return self.series[index], self.labels[index]


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(2, 32, 7), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(32, 64, 7), nn.ReLU(), nn.AdaptiveAvgPool1d(4),
        nn.Flatten(), nn.Linear(256, 4),
    )  # fmt: skip


task = mh.Task(
    make_model,
    functools.partial(Measurements, 12800, wait=0.0004),
    nn.functional.cross_entropy,
    functools.partial(torch.optim.SGD, lr=0.05),
    batch_size=128,
    epochs=4,
    name="slow_rank_reading",
)
healthy = task.replace(train=functools.partial(Measurements, 12800, wait=0.0), name="slow_rank_reading (healthy)")
