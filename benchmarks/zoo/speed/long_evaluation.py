"""Evaluation outlasts training: epochs are short, and each ends with a pass over a test set ten times as large.

Cure: evaluate less often (`eval_every`), or on part of the test set.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

import manyhands as mh

CAUSE = "evaluation"
STRATEGY = "single"
OPTIONS = ()
CURE = "eval_every=10"


def make_data(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(count, 1, 28, 28, generator=generator)
    return images, (images.mean((1, 2, 3)) > 0).long()


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 2),
    )  # fmt: skip


task = mh.Task(
    make_model,
    functools.partial(make_data, 1280),
    nn.functional.cross_entropy,
    functools.partial(torch.optim.SGD, lr=0.05),
    test=functools.partial(make_data, 12800, seed=1),
    batch_size=64,
    epochs=15,
    name="long_evaluation",
)
healthy = task.replace(
    train=functools.partial(make_data, 19200),
    test=functools.partial(make_data, 640, seed=1),
    epochs=1,
    name="long_evaluation (healthy)",
)
