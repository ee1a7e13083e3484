"""Dropout: every rank draws a mask of its own, so no two numbers of ranks train the same model.

Cure: none is needed for training; dropout 0 where results must be those of a single process.
"""

from functools import partial

import torch
from torch import nn

import manyhands as mh

CAUSE = "randomness"
STRATEGY = "ddp"
OPTIONS = ("--ranks", "2")
CURE = "set dropout to 0 to compare"

INPUTS = torch.randn(256, 12, generator=torch.Generator().manual_seed(1))
LABELS = torch.randint(0, 4, (256,), generator=torch.Generator().manual_seed(2))


class Residual(nn.Module):
    """Dropout called as a function, where no module can be switched off."""

    def __init__(self, dropout: float):
        super().__init__()
        self.into, self.out, self.chance = nn.Linear(12, 24), nn.Linear(24, 4), dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.into(x))
        return self.out(nn.functional.dropout(hidden, self.chance, self.training))


def make(dropout: float) -> mh.Task:
    return mh.Task(
        model=partial(Residual, dropout),
        train=(INPUTS, LABELS),
        loss=nn.functional.cross_entropy,
        optimizer=partial(torch.optim.AdamW, lr=1e-2),
        batch_size=16,
        epochs=2,
    )


task, healthy = make(0.2), make(0.0)
