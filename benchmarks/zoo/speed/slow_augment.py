"""Augmentation is slow: `task.augment` turns every image by itself, in Python, on the rank that trains.

Cure: augment the batch as a whole (here: `augment_together`), or do it in the loader's workers.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

import manyhands as mh

CAUSE = "augmentation"
STRATEGY = "single"
OPTIONS = ()
CURE = "augment whole batches"


def make_data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(6400, 3, 24, 24, generator=generator), torch.randint(10, (6400,), generator=generator)


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip


def augment_one_by_one(images: Tensor, keys: Tensor) -> Tensor:
    """Flip, shift and brighten each image by its key, one after the other."""
    out = []
    for image, key in zip(images, keys.tolist(), strict=True):
        if key & 1:
            image = image.flip(-1)
        padded = nn.functional.pad(image, (2, 2, 2, 2))
        down, right = (key >> 1) % 5, (key >> 9) % 5
        image = padded[:, down : down + 24, right : right + 24]
        for channel in range(3):
            shift = ((key >> (17 + channel)) % 7 - 3) / 30
            image = torch.cat([image[:channel], image[channel : channel + 1] + shift, image[channel + 1 :]])
        out.append(image)
    return torch.stack(out)


def augment_together(images: Tensor, keys: Tensor) -> Tensor:
    """Every second image flipped, in one operation."""
    turned = (keys & 1).bool().reshape(-1, 1, 1, 1)
    return torch.where(turned, images.flip(-1), images)


task = mh.Task(
    make_model,
    make_data,
    nn.functional.cross_entropy,
    functools.partial(torch.optim.SGD, lr=0.05),
    batch_size=128,
    epochs=6,
    augment=augment_one_by_one,
    name="slow_augment",
)
healthy = task.replace(augment=augment_together, name="slow_augment (healthy)")
