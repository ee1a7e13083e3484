"""The smallest task: two interleaved spirals, told apart by a small network.

manyhands compare examples/smallest.py
"""

from functools import partial

import torch
from torch import nn

import manyhands as mh


def spirals(points: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points in the plane and the spiral each lies on."""
    which = torch.arange(points) % 2
    along = torch.rand(points) * 3
    angle = 2.5 * along + which * torch.pi
    places = torch.stack([along * angle.cos(), along * angle.sin()], dim=1)
    return places + 0.1 * torch.randn(points, 2), which


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))


task = mh.Task(
    model=network,
    train=partial(spirals, 20_000),
    test=partial(spirals, 2_000),
    loss=nn.functional.cross_entropy,
    optimizer=partial(torch.optim.Adam, lr=3e-3),
    batch_size=100,
    epochs=3,
)
