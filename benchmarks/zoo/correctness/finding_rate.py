"""A schedule meant per epoch is stepped per update: the rate is gone after the first two hundred of 2,000 updates.

Cure: count in updates, `StepLR(optimizer, 30 * updates // epochs)`, or build the schedule from the total it is given.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR

import manyhands as mh

CAUSE = "rate"
STRATEGY = "ddp"
OPTIONS = ("--ranks", "2")
CURE = "count the schedule in updates"


def make_data(count: int = 1024) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(count, 20, generator=torch.Generator().manual_seed(0))
    return inputs, inputs[:, :4].argmax(1)


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))


def per_epoch(optimizer: torch.optim.Optimizer, updates: int) -> StepLR:
    return StepLR(optimizer, step_size=30, gamma=0.1)


def per_update(optimizer: torch.optim.Optimizer, updates: int) -> StepLR:
    return StepLR(optimizer, step_size=updates // 3, gamma=0.1)


task = mh.Task(
    make_model,
    make_data,
    nn.functional.cross_entropy,
    functools.partial(torch.optim.SGD, lr=0.1),
    schedule=per_epoch,
    batch_size=32,
    epochs=60,
    name="finding_rate",
)
healthy = task.replace(schedule=per_update, name="finding_rate (healthy)")
