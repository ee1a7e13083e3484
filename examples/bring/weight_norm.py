"""Layers that cannot be pickled (weight_norm): a factory makes them on every rank (examples/bring/weight_norm.py)."""

from functools import partial

import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

import manyhands as mh

images = torch.randn(512, 3, 8, 8, generator=torch.Generator().manual_seed(0))
task = mh.Task(
    model=lambda: nn.Sequential(weight_norm(nn.Conv2d(3, 8, 3)), nn.Flatten(), weight_norm(nn.Linear(288, 10))),
    train=(images, images.mean((1, 2, 3)).mul(40).long().clamp(-5, 4) + 5),
    loss=nn.functional.cross_entropy,
    optimizer=partial(torch.optim.SGD, lr=0.1),
    batch_size=32,
)
