"""A pause at each epoch: the stream opens its archive again whenever it is read from the start, and epochs are short.

Cure: open the archive once and keep it open (here: `opened`), or make epochs longer.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset

import manyhands as mh

CAUSE = "loading"
STRATEGY = "single"
OPTIONS = ()
CURE = "open the archive once, not at each epoch"


class Archive(IterableDataset):
    """A stream of images; `opening` seconds pass before the first of an epoch."""

    def __init__(self, count: int, opening: float):
        generator = torch.Generator().manual_seed(0)
        self.images = torch.randn(count, 3, 20, 20, generator=generator)
        self.labels = torch.randint(10, (count,), generator=generator)
        self.opening = opening

    def __len__(self) -> int:
        return len(self.labels)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        if self.opening:
            time.sleep(self.opening)
        yield from zip(self.images, self.labels, strict=True)


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 24, 3), nn.ReLU(), nn.Conv2d(24, 24, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(3),
        nn.Flatten(), nn.Linear(216, 10),
    )  # fmt: skip


task = mh.Task(
    make_model,
    functools.partial(Archive, 20 * 64, opening=0.6),
    nn.functional.cross_entropy,
    functools.partial(torch.optim.SGD, lr=0.05),
    batch_size=64,
    epochs=20,
    name="epoch_pause",
)
healthy = task.replace(train=functools.partial(Archive, 20 * 64, opening=0.0), name="epoch_pause (healthy)")
