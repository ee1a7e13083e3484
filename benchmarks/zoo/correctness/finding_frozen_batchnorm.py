"""A BatchNorm is frozen by requires_grad=False alone: its weights stay, its running statistics follow every batch.

Cure: `eval()` on that layer as well; it stays in eval mode while the rest trains.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

import manyhands as mh

CAUSE = "frozen_batchnorm"
STRATEGY = "single"
OPTIONS = ()
CURE = "eval() on the frozen BatchNorm"


def make_data(count: int = 1024) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(count, 20, generator=torch.Generator().manual_seed(0))
    return inputs, inputs[:, :4].argmax(1)


def make_model(in_eval: bool) -> nn.Module:
    model = nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 4))
    model[1].requires_grad_(False)
    model[1].train(not in_eval)
    return model


task = mh.Task(
    functools.partial(make_model, False),
    make_data,
    nn.functional.cross_entropy,
    functools.partial(torch.optim.SGD, lr=0.1),
    batch_size=32,
    epochs=2,
    name="finding_frozen_batchnorm",
)
healthy = task.replace(model=functools.partial(make_model, True), name="finding_frozen_batchnorm (healthy)")
