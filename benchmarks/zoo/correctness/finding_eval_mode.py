"""The whole model is put into eval mode, meant to switch one layer's noise off; training puts it back, and it is on.

Cure: put that layer alone into eval mode, where it stays, as the twin does.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

import manyhands as mh

CAUSE = "eval_mode"
STRATEGY = "ddp"
OPTIONS = ("--ranks", "2")
CURE = "put the layer alone into eval mode"


def make_data(count: int = 1024) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(count, 20, generator=torch.Generator().manual_seed(0))
    return inputs, inputs[:, :4].argmax(1)


class Sharpened(nn.Module):
    """Twice as sure in training: what eval mode was meant to switch off."""

    def forward(self, inputs: Tensor) -> Tensor:
        return 2.0 * inputs if self.training else inputs


def make_model(whole: bool) -> nn.Module:
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), Sharpened(), nn.Linear(64, 4))
    (model if whole else model[2]).eval()
    return model


task = mh.Task(
    functools.partial(make_model, True),
    make_data,
    nn.functional.cross_entropy,
    functools.partial(torch.optim.SGD, lr=0.1),
    batch_size=32,
    epochs=2,
    name="finding_eval_mode",
)
healthy = task.replace(model=functools.partial(make_model, False), name="finding_eval_mode (healthy)")
