"""The optimizer is given the parameters whose names hold "weight": no bias is ever trained.

Cure: hand it all named parameters, in two groups where weights alone should decay, as the twin does.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

import manyhands as mh

Named = Iterable[tuple[str, nn.Parameter]]

CAUSE = "frozen_weights"
STRATEGY = "ddp"
OPTIONS = ("--ranks", "2")
CURE = "hand the optimizer all parameters"


def make_data(count: int = 1024) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(count, 20, generator=torch.Generator().manual_seed(0))
    return inputs, inputs[:, :4].argmax(1)


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))


def weights_alone(named: Named) -> torch.optim.Optimizer:
    return torch.optim.AdamW([parameter for name, parameter in named if "weight" in name], lr=1e-3)


def both(named: Named) -> torch.optim.Optimizer:
    known = list(named)
    groups = [[parameter for name, parameter in known if ("weight" in name) is decays] for decays in (True, False)]
    return torch.optim.AdamW([{"params": groups[0]}, {"params": groups[1], "weight_decay": 0.0}], lr=1e-3)


task = mh.Task(
    make_model,
    make_data,
    nn.functional.cross_entropy,
    weights_alone,
    batch_size=32,
    epochs=2,
    name="finding_left_out",
)
healthy = task.replace(optimizer=both, name="finding_left_out (healthy)")
