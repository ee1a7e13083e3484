"""A loss that sums over samples instead of averaging: parts of a batch weigh less than the whole.

Cure: divide by the number of samples (reduction="mean").
"""

from functools import partial

import torch
from torch import nn

import manyhands as mh

CAUSE = "loss"
STRATEGY = "ddp"
OPTIONS = ("--ranks", "2")
CURE = 'reduction="mean"'

INPUTS = torch.randn(256, 10, generator=torch.Generator().manual_seed(1))
TARGETS = INPUTS[:, :3].cumsum(1)


def make(reduction: str, rate: float) -> mh.Task:
    return mh.Task(
        model=lambda: nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 3)),
        train=(INPUTS, TARGETS),
        loss=nn.MSELoss(reduction=reduction),
        optimizer=partial(torch.optim.SGD, lr=rate),
        batch_size=16,
        epochs=2,
    )


task, healthy = make("sum", 1e-4), make("mean", 1e-2)
