"""CIFAR-10: 32x32 colour images in ten classes; MobileNetV2 or a ResNet, with any normalisation.

The recipe: random crop, flip and cutout; label smoothing 0.1; SGD with Nesterov momentum 0.9 and weight decay 5e-4 on
the weights of layers (not on biases, normalisations and gains); the learning rate follows the batch, and is less for
a wide head; warm-up, then cosine or linear decay to zero. Without batch statistics (norm=group, norm=none)
MobileNetV2 has standardised weights and residual branches that start at zero; see `models/norms.py`, and
docs/tasks.md for how far that was tried.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from ..data import augment, files
from ..schedules import cosine, linear, scaled_rate
from ..task import Task
from . import positive
from .models import Norm, mobilenetv2, resnet20, resnet50

MODELS = {"mobilenetv2": mobilenetv2, "resnet20": resnet20, "resnet50": resnet50}
SCHEDULES = {"cosine": cosine, "linear": linear}
REFERENCE_BATCH = 128
HEAD_FEATURES = 160  # up to here the last layer learns at the full rate


def make(
    model: Literal["mobilenetv2", "resnet20", "resnet50"] = "mobilenetv2",
    norm: Norm = "batch",
    width: float = 1.0,
    schedule: Literal["cosine", "linear"] = "cosine",
    rate: float = 0.1,
    batch: int = REFERENCE_BATCH,
) -> Task:
    """`width` multiplies the channels; `rate` is the learning rate at batch 128, larger batches get more of it."""
    positive("cifar10", "above 0", width=width, rate=rate, batch=batch)
    return Task(
        model=partial(MODELS[model], norm=norm, width=width),
        train=partial(images, "train"),
        test=partial(images, "test"),
        loss=partial(F.cross_entropy, label_smoothing=0.1),
        optimizer=partial(sgd, rate=scaled_rate(rate, batch, REFERENCE_BATCH)),
        schedule=SCHEDULES[schedule](warmup=0.08),
        augment=augment.Compose(augment.Crop(padding=4), augment.Flip(), augment.Cutout(size=8)),
        batch_size=batch,
        epochs=60,
        name="cifar10",
    )


def images(split: str) -> tuple[Tensor, Tensor]:
    """The images (uint8, count x 3 x 32 x 32) and labels of a split."""
    train, test = files.cifar10()
    return train if split == "train" else test


def sgd(parameters: Iterable[tuple[str, nn.Parameter]], rate: float) -> Optimizer:
    """Weight decay for the weights of layers alone: gains and biases, one number a channel, would only shrink.

    An update of the head moves the logits of all images together by its rate times the sum of squared features. Over
    MobileNetV2's 1280, all of them positive, that drowned what the rest learnt; so a wide head gets less of the rate.
    """
    groups: dict[tuple[float, float], dict[str, Any]] = {}
    for name, value in parameters:
        if value.ndim == 2:
            share, decay = min(1.0, HEAD_FEATURES / value.shape[1]), 5e-4
        else:
            share, decay = 1.0, 5e-4 if value.ndim > 1 else 0.0
        group = groups.setdefault((share, decay), {"params": [], "lr": rate * share, "weight_decay": decay})
        group["params"].append((name, value))
    return torch.optim.SGD(list(groups.values()), lr=rate, momentum=0.9, nesterov=True)


task = make()
