"""A dense update: Adam goes through every row of a large embedding in each step, though a batch touches a few hundred.

Cure: `nn.Embedding(sparse=True)` with an optimizer that takes sparse gradients, or items hashed into fewer rows.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

import manyhands as mh

CAUSE = "update"
STRATEGY = "single"
OPTIONS = ()
CURE = "fewer rows, or sparse gradients"
ITEMS = 500_000


def make_data(items: int = ITEMS) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(items, (25600, 4), generator=generator), torch.randint(10, (25600,), generator=generator)


class Recommender(nn.Module):
    def __init__(self, items: int = ITEMS):
        super().__init__()
        self.items = nn.Embedding(items, 64)
        self.head = nn.Sequential(
            nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
        )  # fmt: skip

    def forward(self, numbers: Tensor) -> Tensor:
        return self.head(self.items(numbers).flatten(1))


task = mh.Task(
    Recommender,
    make_data,
    nn.functional.cross_entropy,
    functools.partial(torch.optim.Adam, lr=1e-3),
    batch_size=256,
    epochs=3,
    name="dense_adam",
)
healthy = task.replace(
    model=functools.partial(Recommender, 2000), train=functools.partial(make_data, 2000), name="dense_adam (healthy)"
)
