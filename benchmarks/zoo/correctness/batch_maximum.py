"""A model that normalises by the batch: features are divided by their largest value among the samples at hand.

Cure: normalise each sample by itself (LayerNorm).
"""

from functools import partial

import torch
from torch import Tensor, nn

import manyhands as mh

CAUSE = "neighbours"
STRATEGY = "ddp"
OPTIONS = ("--ranks", "2")
CURE = "LayerNorm"

INPUTS = torch.randn(256, 12, generator=torch.Generator().manual_seed(1))
LABELS = torch.randint(0, 4, (256,), generator=torch.Generator().manual_seed(2))


class Scaled(nn.Module):
    def __init__(self, over_batch: bool):
        super().__init__()
        self.into, self.out, self.over = nn.Linear(12, 24), nn.Linear(24, 4), 0 if over_batch else 1

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.into(x))
        return self.out(hidden / hidden.abs().amax(self.over, keepdim=True).clamp(min=1e-3))


def make(over_batch: bool) -> mh.Task:
    return mh.Task(
        model=partial(Scaled, over_batch),
        train=(INPUTS, LABELS),
        loss=nn.functional.cross_entropy,
        optimizer=partial(torch.optim.SGD, lr=0.1),
        batch_size=16,
        epochs=2,
    )


task, healthy = make(True), make(False)
