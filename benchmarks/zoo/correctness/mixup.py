"""Mixup over the batch: each sample is blended with its mirror image in the batch, of which a rank has a part.

Cure: blend within a sample, or over the whole data set by index.
"""

from functools import partial

import torch
from torch import Tensor, nn

import manyhands as mh

CAUSE = "augmentation"
STRATEGY = "ddp"
OPTIONS = ("--ranks", "2")
CURE = "an augmentation that looks at one sample"

INPUTS = torch.randn(256, 12, generator=torch.Generator().manual_seed(1))
LABELS = torch.randint(0, 4, (256,), generator=torch.Generator().manual_seed(2))


def blend(input: Tensor, keys: Tensor) -> Tensor:
    share = 0.6 + 0.4 * mh.augment.uniform(keys, 1)
    return share * input + (1 - share) * input.flip(0)


def scale(input: Tensor, keys: Tensor) -> Tensor:
    return input * (0.8 + 0.4 * mh.augment.uniform(keys, 1))


task = mh.Task(
    model=lambda: nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 4)),
    train=(INPUTS, LABELS),
    loss=nn.functional.cross_entropy,
    optimizer=partial(torch.optim.SGD, lr=0.1),
    batch_size=16,
    epochs=2,
    augment=blend,
)
healthy = task.replace(augment=scale)
