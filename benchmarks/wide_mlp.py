"""A model of 25 million parameters in four layers and little to compute: what a slow link makes of its 100 MB of gradients."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

import manyhands as mh

SAMPLES, WIDTH, CLASSES = 1024, 3072, 1000


def model() -> nn.Module:
    first, last = nn.Linear(1024, WIDTH), nn.Linear(WIDTH, CLASSES)
    return nn.Sequential(first, nn.ReLU(), *(nn.Linear(WIDTH, WIDTH) for _ in range(2)), nn.ReLU(), last)


def data() -> tuple[Tensor, Tensor]:
    return torch.randn(SAMPLES, 1024), torch.randint(0, CLASSES, (SAMPLES,))


task = mh.Task(
    model=model,
    train=data,
    loss=nn.functional.cross_entropy,
    optimizer=partial(torch.optim.SGD, lr=0.01),
    batch_size=32,
    name="wide_mlp",
)
