"""Sparse logistic regression on data the package makes: each sample touches a few of many features.

The case Hogwild is proven for: a gradient has entries only for the features of its samples, so ranks that write at
the same time rarely write the same numbers. Like words in texts, some features are frequent and most are rare
(Zipf's law); a sample holds 10 to 50 of them, weighted to length one. Labels are drawn from a logistic model around
zero, so no classifier is right always, and none needs a bias, which would be the one weight every sample touches.
`sparse:dense` is its dense twin: the same samples and the same numbers, but every update writes every weight.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..schedules import linear
from ..task import Task
from . import positive

MOST = 50  # features a sample


def make(features: int = 20_000, train: int = 60_000, test: int = 10_000, dense: bool = False) -> Task:
    """The task.

    Args:
        features: how many features there are, with one weight each
        train: how many training samples are made
        test: how many test samples are made
        dense: make every update write every weight, instead of those of the features in the batch

    Example:
        manyhands compare sparse hogwild locked --ranks 2
    """
    positive("sparse", "at least 1", features=features, train=train, test=test)
    return Task(
        model=partial(SparseLogistic, features, dense),
        train=partial(samples, "train", train, features),
        test=partial(samples, "test", test, features),
        loss=F.cross_entropy,
        optimizer=partial(torch.optim.SGD, lr=20.0),
        schedule=linear(),
        batch_size=32,
        epochs=3,
        name="sparse",
    )


class SparseLogistic(nn.Module):
    """Two-class logistic regression; the gradient of its weights is a sparse tensor, unless `dense`.

    Input: {"features": samples x 50, "values": samples x 50}; unused places hold feature 0, value 0.
    """

    def __init__(self, features: int, dense: bool = False):
        super().__init__()
        self.weights = nn.EmbeddingBag(features + 1, 1, mode="sum", sparse=not dense, padding_idx=0)
        nn.init.zeros_(self.weights.weight)

    def forward(self, samples: dict[str, Tensor]) -> Tensor:
        score = self.weights(samples["features"], per_sample_weights=samples["values"])
        return F.pad(score, (1, 0))  # the score of class 0 is 0


def samples(split: str, count: int, features: int) -> tuple[dict[str, Tensor], Tensor]:
    """Features (numbered from 1), their values, and labels, the same on every machine."""
    truth = np.random.default_rng(0).standard_normal(features + 1) * 6.0
    generator = np.random.default_rng([1, ["train", "test"].index(split)])
    # the feature of rank r has a share of about 1 / r of all occurrences
    share = np.cumsum(1.0 / np.arange(10, features + 10))
    chosen = 1 + np.searchsorted(share, generator.random((count, MOST)) * share[-1])
    present = np.arange(MOST) < generator.integers(10, MOST + 1, count)[:, None]
    values = present / np.sqrt(present.sum(1, keepdims=True))
    chosen[~present] = 0
    score = (truth[chosen] * values).sum(1)
    labels = generator.random(count) < 1 / (1 + np.exp(-score))
    inputs = {"features": torch.from_numpy(chosen), "values": torch.from_numpy(values.astype(np.float32))}
    return inputs, torch.from_numpy(labels.astype(np.int64))


task = make()
