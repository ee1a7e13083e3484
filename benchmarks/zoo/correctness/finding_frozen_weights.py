"""The encoder's output is detached on its way to the head, left over from a debugging session: only the head learns.

Cure: take `detach()` out, or freeze the encoder on purpose (`requires_grad_(False)`), as the twin does.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

import manyhands as mh

CAUSE = "frozen_weights"
STRATEGY = "ddp"
OPTIONS = ("--ranks", "2")
CURE = "take detach() out"


def make_data(count: int = 1024) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(count, 20, generator=torch.Generator().manual_seed(0))
    return inputs, inputs[:, :4].argmax(1)


class Encoded(nn.Module):
    def __init__(self, detached: bool):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.head = nn.Linear(64, 4)
        self.detached = detached
        if not detached:
            self.encoder.requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.encoder(inputs)
        out: Tensor = self.head(hidden.detach() if self.detached else hidden)
        return out


task = mh.Task(
    functools.partial(Encoded, True),
    make_data,
    nn.functional.cross_entropy,
    functools.partial(torch.optim.SGD, lr=0.1),
    batch_size=32,
    epochs=2,
    name="finding_frozen_weights",
)
healthy = task.replace(model=functools.partial(Encoded, False), name="finding_frozen_weights (healthy)")
