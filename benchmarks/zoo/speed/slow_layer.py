"""A slow forward pass: a layer works its table of positions out again for every batch, number by number in Python.

Cure: make the table once, in `__init__`, and keep it as a buffer.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor, nn

import manyhands as mh

CAUSE = "forward"
STRATEGY = "single"
OPTIONS = ()
CURE = "keep the table as a buffer"
LENGTH, WIDTH = 64, 64


def make_data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randint(100, (6400, LENGTH), generator=generator)
    return inputs, inputs[:, :8].sum(1) % 10


def table() -> Tensor:
    rows = []
    for place in range(LENGTH):
        angles = [place / 10000 ** (2 * (number // 2) / WIDTH) for number in range(WIDTH)]
        rows.append([math.sin(angle) if number % 2 else math.cos(angle) for number, angle in enumerate(angles)])
    return torch.tensor(rows)


class Positions(nn.Module):
    """Adds its position to each symbol."""

    def __init__(self, kept: bool):
        super().__init__()
        self.kept = kept
        self.register_buffer("ready", table(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.kept:
            return x + self.ready
        for _ in range(15):  # as many as there are layers that ask
            positions = table()
        return x + positions


def make_model(kept: bool = False) -> nn.Module:
    return nn.Sequential(
        nn.Embedding(100, WIDTH), Positions(kept),
        nn.Linear(WIDTH, 192), nn.ReLU(), nn.Linear(192, WIDTH), nn.ReLU(), nn.Flatten(), nn.Linear(LENGTH * WIDTH, 10),
    )  # fmt: skip


task = mh.Task(
    make_model,
    make_data,
    nn.functional.cross_entropy,
    functools.partial(torch.optim.SGD, lr=0.05),
    batch_size=128,
    epochs=8,
    name="slow_layer",
)
healthy = task.replace(model=functools.partial(make_model, kept=True), name="slow_layer (healthy)")
