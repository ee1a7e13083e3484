"""A slow metric: after every short epoch a score is worked out pair by pair in Python, and takes longer than the epoch.

Cure: compute it with tensors, on a part of the test set, or less often (`eval_every`).
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

import manyhands as mh

CAUSE = "evaluation"
STRATEGY = "ddp"
OPTIONS = ("--ranks", "2")
CURE = "a metric in tensors, or eval_every=10"


def make_data(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(count, 1, 28, 28, generator=generator)
    return images, (images.mean((1, 2, 3)) > 0).long()


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 2),
    )  # fmt: skip


def pairs_in_order(output: Tensor, target: Tensor) -> float:
    """How many pairs of samples have their scores in the right order (AUC, the slow way)."""
    scores, labels = output[:, 1].tolist(), target.tolist()
    right = total = 0
    for _ in range(60):  # as a bootstrap would
        for one, label in zip(scores, labels, strict=True):
            for other, its in zip(scores, labels, strict=True):
                if label > its:
                    total += 1
                    right += one > other
    return right / max(total, 1)


def mean_score(output: Tensor, target: Tensor) -> float:
    return float(output.softmax(1).gather(1, target.unsqueeze(1)).mean())


task = mh.Task(
    make_model,
    functools.partial(make_data, 2560),
    nn.functional.cross_entropy,
    functools.partial(torch.optim.SGD, lr=0.05),
    test=functools.partial(make_data, 1024, seed=1),
    batch_size=128,
    epochs=20,
    metrics={"order": pairs_in_order},
    name="slow_metric",
)
healthy = task.replace(metrics={"score": mean_score}, train=functools.partial(make_data, 12800), epochs=4,
                       name="slow_metric (healthy)")  # fmt: skip
