"""Communication in crumbs: buckets of a few kilobytes make a collective of every parameter, each with its own latency.

Cure: leave `bucket_mb` at its default of 25.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

import manyhands as mh

CAUSE = "communication"
STRATEGY = "ddp:bucket_mb=0.001"
OPTIONS = ("--ranks", "2")
HEALTHY_STRATEGY = "ddp"
CURE = "bucket_mb=25"


def make_data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(12800, 64, generator=generator), torch.randint(10, (12800,), generator=generator)


def make_model() -> nn.Module:
    """Many thin layers: a parameter has a few kilobytes."""
    layers: list[nn.Module] = [nn.Linear(64, 48)]
    for _ in range(120):
        layers += [nn.Tanh(), nn.Linear(48, 48)]
    return nn.Sequential(*layers, nn.Tanh(), nn.Linear(48, 10))


def make_wide() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 64, 3, padding=1), nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip


task = mh.Task(
    make_model,
    make_data,
    nn.functional.cross_entropy,
    functools.partial(torch.optim.SGD, lr=0.05),
    batch_size=128,
    epochs=4,
    name="tiny_buckets",
)
healthy = task.replace(model=make_wide, name="tiny_buckets (healthy)")
