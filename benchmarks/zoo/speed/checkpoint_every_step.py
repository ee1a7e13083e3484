"""A checkpoint after every step: the weights and Adam's moments are written out more often than anybody needs them.

Cure: `--checkpoint-every 200`, or every 30 s.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

import manyhands as mh

CAUSE = "checkpoint"
STRATEGY = "single"
OPTIONS = ("--checkpoint-every", "1")
HEALTHY_OPTIONS = ("--checkpoint-every", "200")
CURE = "checkpoint_every=200"


def make_data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(12800, 512, generator=generator), torch.randint(10, (12800,), generator=generator)


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(512, 768), nn.GELU(), nn.Linear(768, 768), nn.GELU(), nn.Linear(768, 10)
    )  # fmt: skip


task = mh.Task(
    make_model,
    make_data,
    nn.functional.cross_entropy,
    functools.partial(torch.optim.Adam, lr=1e-3),
    batch_size=128,
    epochs=3,
    name="checkpoint_every_step",
)
healthy = task.replace(name="checkpoint_every_step (healthy)")
