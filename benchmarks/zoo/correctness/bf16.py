"""Training in bf16: every part of a batch is rounded to 8 bits by itself.

Cure: fp32 where results must be those of a single process.
"""

from functools import partial

import torch
from torch import nn

import manyhands as mh

CAUSE = "precision"
STRATEGY = "ddp"
OPTIONS = ("--ranks", "2", "--precision", "bf16")
HEALTHY_OPTIONS = ("--ranks", "2")
CURE = "fp32"

INPUTS = torch.randn(256, 12, generator=torch.Generator().manual_seed(1))
LABELS = torch.randint(0, 4, (256,), generator=torch.Generator().manual_seed(2))

task = mh.Task(
    model=lambda: nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)),
    train=(INPUTS, LABELS),
    loss=nn.functional.cross_entropy,
    optimizer=partial(torch.optim.SGD, lr=0.1),
    batch_size=16,
    epochs=2,
)
healthy = task
