"""A slow transform: the Dataset's `transform` draws a random elastic warp per sample, in Python loops.

Cure: warp whole batches in `task.augment`, use a cheaper transform, or let loader workers do it.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import manyhands as mh

CAUSE = "augmentation"
STRATEGY = "ddp"
OPTIONS = ("--ranks", "2")
CURE = "a cheaper transform, on whole batches"


class Photos(Dataset):
    """Images with a transform, as torchvision's data sets have one."""

    def __init__(self, count: int, transform: Callable[[Tensor], Tensor] | None):
        generator = torch.Generator().manual_seed(0)
        self.photos = torch.randn(count, 1, 28, 28, generator=generator)
        self.labels = torch.randint(10, (count,), generator=generator)
        self.transform = transform

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        photo = self.photos[index]
        if self.transform is not None:
            photo = self.transform(photo)
        return photo, self.labels[index]


def warp(photo: Tensor) -> Tensor:
    """Move each row and each column along a random wave."""
    phase, swing = random.random() * 6.28, random.random() * 3
    rows = [row.roll(round(swing * math.sin(phase + place / 4)), 0) for place, row in enumerate(photo[0])]
    columns = [
        column.roll(round(swing * math.cos(phase + place / 4)), 0) for place, column in enumerate(torch.stack(rows).T)
    ]
    return torch.stack(columns).T.unsqueeze(0).contiguous()


def flip(photo: Tensor) -> Tensor:
    return photo.flip(-1) if random.random() < 0.5 else photo


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip


task = mh.Task(
    make_model,
    functools.partial(Photos, 12800, warp),
    nn.functional.cross_entropy,
    functools.partial(torch.optim.SGD, lr=0.05),
    batch_size=128,
    epochs=4,
    name="slow_transform",
)
healthy = task.replace(train=functools.partial(Photos, 12800, flip), name="slow_transform (healthy)")
