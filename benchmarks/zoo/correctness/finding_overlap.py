"""A fifth of the test set was cut from the training set before the two were told apart: its accuracy is too good.

Cure: split first; the twin's test set has no row of the training set.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

import manyhands as mh

CAUSE = "train_test_overlap"
STRATEGY = "ddp"
OPTIONS = ("--ranks", "2")
CURE = "split the data before anything else"


def make_data(count: int = 1024) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(count, 20, generator=torch.Generator().manual_seed(0))
    return inputs, inputs[:, :4].argmax(1)


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))


def cut(leaked: int) -> tuple[Tensor, Tensor]:
    """500 test samples, of which so many are training samples."""
    old, new = make_data(), make_data(2048)
    return torch.cat([old[0][:leaked], new[0][1100 : 1600 - leaked]]), torch.cat(
        [old[1][:leaked], new[1][1100 : 1600 - leaked]]
    )


task = mh.Task(
    make_model,
    make_data,
    nn.functional.cross_entropy,
    functools.partial(torch.optim.SGD, lr=0.1),
    test=functools.partial(cut, 100),
    batch_size=32,
    epochs=2,
    name="finding_overlap",
)
healthy = task.replace(test=functools.partial(cut, 0), name="finding_overlap (healthy)")
