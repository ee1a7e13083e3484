"""A slow update: an optimizer of one's own goes through each weight matrix row by row.

Cure: write the update for whole tensors, or use torch's optimizers.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

import manyhands as mh

CAUSE = "update"
STRATEGY = "ddp"
OPTIONS = ("--ranks", "2")
CURE = "update whole tensors"


class RowByRow(torch.optim.Optimizer):
    """Plain SGD whose rows are scaled one by one."""

    def __init__(self, parameters: Any, lr: float = 0.05):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                for row, slope in zip(parameter.flatten(1) if parameter.dim() > 1 else [parameter],
                                      parameter.grad.flatten(1) if parameter.dim() > 1 else [parameter.grad],
                                      strict=True):  # fmt: skip
                    row.sub_(slope * (group["lr"] / (1 + slope.norm())))


def make_data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(12800, 1, 16, 16, generator=generator), torch.randint(10, (12800,), generator=generator)


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 48, 5), nn.ReLU(), nn.Conv2d(48, 48, 5), nn.ReLU(), nn.Flatten(),
        nn.Linear(3072, 64), nn.ReLU(), nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10),
    )  # fmt: skip


task = mh.Task(
    make_model, make_data, nn.functional.cross_entropy, RowByRow, batch_size=128, epochs=4, name="own_optimizer"
)
healthy = task.replace(optimizer=functools.partial(torch.optim.SGD, lr=0.05), name="own_optimizer (healthy)")
