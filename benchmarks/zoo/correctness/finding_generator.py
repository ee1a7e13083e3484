"""A Dataset draws its noise from a generator of its own: every rank has a copy, and all copies give the same numbers.

Cure: draw from torch's own generator, which is seeded for every sample, as the twin does.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import manyhands as mh

CAUSE = "generator"
STRATEGY = "ddp"
OPTIONS = ("--ranks", "2")
CURE = "draw from torch's own generator"


def make_data(count: int = 1024) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(count, 20, generator=torch.Generator().manual_seed(0))
    return inputs, inputs[:, :4].argmax(1)


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, own: bool):
        self.inputs, self.targets = make_data()
        self.generator = torch.Generator().manual_seed(1) if own else None

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        noise = torch.randn(20, generator=self.generator)
        return self.inputs[index] + 0.1 * noise, self.targets[index]


task = mh.Task(
    make_model,
    functools.partial(Noisy, True),
    nn.functional.cross_entropy,
    functools.partial(torch.optim.SGD, lr=0.1),
    batch_size=32,
    epochs=2,
    name="finding_generator",
)
healthy = task.replace(train=functools.partial(Noisy, False), name="finding_generator (healthy)")
