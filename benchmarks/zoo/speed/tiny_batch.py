"""Tiny steps: a batch of 4 samples gives the cores next to nothing to compute; each step is the cost of starting one.

Cure: a larger batch (with the learning rate scaled along).
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

import manyhands as mh

CAUSE = "launch"
STRATEGY = "single"
OPTIONS = ()
CURE = "a larger batch_size"


def make_data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(9600, 128, generator=generator)
    return inputs, (inputs[:, :10] + 0.1 * inputs[:, 10:20]).argmax(1)


def make_model() -> nn.Module:
    layers: list[nn.Module] = [nn.Linear(128, 256)]
    for _ in range(6):
        layers += [nn.ReLU(), nn.LayerNorm(256), nn.Linear(256, 256)]
    return nn.Sequential(*layers, nn.ReLU(), nn.Linear(256, 10))


task = mh.Task(
    make_model,
    make_data,
    nn.functional.cross_entropy,
    functools.partial(torch.optim.AdamW, lr=1e-4),
    batch_size=4,
    epochs=1,
    name="tiny_batch",
)
healthy = task.replace(batch_size=256, epochs=10, name="tiny_batch (healthy)")
