"""A hook on each parameter clips its gradient: on every rank the gradient of a part, before they are summed.

Cure: clip (--clip), which sees the gradient of the whole batch.
"""

from functools import partial

import torch
from torch import Tensor, nn

import manyhands as mh

CAUSE = "clipping"
STRATEGY = "ddp"
OPTIONS = ("--ranks", "2")
HEALTHY_OPTIONS = ("--ranks", "2", "--clip", "0.05")
CURE = "--clip 0.05"

INPUTS = torch.randn(256, 12, generator=torch.Generator().manual_seed(1))
LABELS = torch.randint(0, 4, (256,), generator=torch.Generator().manual_seed(2))


def small(gradient: Tensor) -> Tensor:
    return gradient * (0.05 / gradient.norm().clamp(min=0.05))


def model(hooked: bool) -> nn.Module:
    made = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 4))
    for parameter in made.parameters():
        if hooked:
            parameter.register_hook(small)
    return made


def make(hooked: bool) -> mh.Task:
    return mh.Task(
        model=partial(model, hooked),
        train=(INPUTS, LABELS),
        loss=nn.functional.cross_entropy,
        optimizer=partial(torch.optim.SGD, lr=0.1),
        batch_size=16,
        epochs=2,
    )


task, healthy = make(True), make(False)
