"""Too many loader workers: eight per rank share the cores that the ranks train on, to hand over what lies in memory.

Cure: no workers; there is nothing to wait for, and what they do takes cores from the ranks.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import manyhands as mh

CAUSE = "cores"
STRATEGY = "ddp"
OPTIONS = ("--ranks", "2", "--loader-workers", "8")
HEALTHY_OPTIONS = ("--ranks", "2")
CURE = "loader_workers=0"


class Photos(Dataset):
    """Images that lie in memory, larger than the model needs: there is nothing to wait for or to compute."""

    def __init__(self, count: int):
        generator = torch.Generator().manual_seed(0)
        self.photos = torch.rand(200, 3, 64, 64, generator=generator)
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.photos[index % 200], index % 10


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=4), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(1152, 10),
    )  # fmt: skip


task = mh.Task(
    make_model,
    Photos(12800),
    nn.functional.cross_entropy,
    functools.partial(torch.optim.SGD, lr=0.05),
    batch_size=128,
    epochs=4,
    name="many_workers",
)
healthy = task.replace(name="many_workers (healthy)")
