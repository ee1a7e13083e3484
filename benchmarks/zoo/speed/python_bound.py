"""Python is what runs: data_parallel's replicas are threads, and a model of many tiny layers keeps them waiting for the GIL.

Cure: ddp, whose ranks are processes; and wider layers or larger batches, so that there is something to compute.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

import manyhands as mh

CAUSE = "launch"
STRATEGY = "data_parallel"
OPTIONS = ("--ranks", "2")
HEALTHY_STRATEGY = "ddp"
CURE = "ddp, or a larger batch"


def make_data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(6400, 64, generator=generator), torch.randint(10, (6400,), generator=generator)


class ManySteps(nn.Module):
    """A recurrence written out by hand, one tiny operation after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.again, self.out = nn.Linear(64, 16), nn.Linear(16, 16), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        state = self.into(x)
        for step in range(60):
            gate = torch.sigmoid(state[:, step % 16 : step % 16 + 1])
            state = gate * torch.tanh(self.again(state)) + (1 - gate) * state
        return self.out(state)


def make_wide() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 64, 3, padding=1), nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip


task = mh.Task(
    ManySteps,
    make_data,
    nn.functional.cross_entropy,
    functools.partial(torch.optim.SGD, lr=0.05),
    batch_size=64,
    epochs=3,
    name="python_bound",
)
healthy = task.replace(model=make_wide, batch_size=128, epochs=8, name="python_bound (healthy)")
