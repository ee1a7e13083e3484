"""An augmentation that draws from torch's global generator instead of the samples' keys: other noise on other ranks.

Cure: draw from mh.augment.uniform(keys, count).
"""

from functools import partial

import torch
from torch import Tensor, nn

import manyhands as mh

CAUSE = "augmentation"
STRATEGY = "ddp"
OPTIONS = ("--ranks", "2")
CURE = "mh.augment.uniform(keys, count)"

INPUTS = torch.randn(256, 12, generator=torch.Generator().manual_seed(1))
LABELS = torch.randint(0, 4, (256,), generator=torch.Generator().manual_seed(2))


def noise(input: Tensor, keys: Tensor) -> Tensor:
    return input + 0.1 * torch.rand_like(input)


def keyed_noise(input: Tensor, keys: Tensor) -> Tensor:
    return input + 0.1 * mh.augment.uniform(keys, 12)


task = mh.Task(
    model=lambda: nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 4)),
    train=(INPUTS, LABELS),
    loss=nn.functional.cross_entropy,
    optimizer=partial(torch.optim.SGD, lr=0.1),
    batch_size=16,
    epochs=2,
    augment=noise,
)
healthy = task.replace(augment=keyed_noise)
