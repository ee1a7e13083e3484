"""BatchNorm under ddp: every rank normalises its part of a batch by that part's own statistics.

Cure: sync_batchnorm, which joins the statistics of all ranks.
"""

from functools import partial

import torch
from torch import nn

import manyhands as mh

CAUSE = "batchnorm"
STRATEGY = "ddp"
OPTIONS = ("--ranks", "2")
HEALTHY_OPTIONS = ("--ranks", "2", "--sync-batchnorm")
CURE = "sync_batchnorm"

IMAGES = torch.randn(256, 1, 8, 8, generator=torch.Generator().manual_seed(1))
LABELS = torch.randint(0, 4, (256,), generator=torch.Generator().manual_seed(2))


def model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 4)
    )


task = mh.Task(
    model=model,
    train=(IMAGES, LABELS),
    loss=nn.functional.cross_entropy,
    optimizer=partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    batch_size=16,
    epochs=2,
)
healthy = task
