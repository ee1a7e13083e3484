"""A running centre in a buffer, moved by every batch and subtracted from the next: each rank keeps its own.

Cure: learn the centre as a parameter, or sum what moves it over ranks.
"""

from functools import partial

import torch
from torch import Tensor, nn

import manyhands as mh

CAUSE = "state"
STRATEGY = "ddp"
OPTIONS = ("--ranks", "2")
CURE = "a centre that is learnt"

INPUTS = 1.0 + torch.randn(256, 12, generator=torch.Generator().manual_seed(1))
LABELS = torch.randint(0, 4, (256,), generator=torch.Generator().manual_seed(2))


class Centred(nn.Module):
    def __init__(self, follows: bool):
        super().__init__()
        self.into, self.out, self.follows = nn.Linear(12, 24), nn.Linear(24, 4), follows
        if follows:
            self.register_buffer("centre", torch.zeros(24))
        else:
            self.centre = nn.Parameter(torch.zeros(24))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.into(x))
        out = self.out(hidden - self.centre)
        if self.training and self.follows:
            self.centre = 0.9 * self.centre + 0.1 * hidden.detach().mean(0)
        return out


def make(follows: bool) -> mh.Task:
    return mh.Task(
        model=partial(Centred, follows),
        train=(INPUTS, LABELS),
        loss=nn.functional.cross_entropy,
        optimizer=partial(torch.optim.SGD, lr=0.1),
        batch_size=16,
        epochs=2,
    )


task, healthy = make(True), make(False)
