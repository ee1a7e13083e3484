"""CIFAR-10: 32x32 colour images in ten classes; MobileNetV2 or a ResNet, with any normalisation.

Our recipe: random crop, flip and cutout; label smoothing 0.1; warm-up over the first 8 % of the updates, then a cosine (or
a line) to zero; weight decay on the weights of layers, not on biases, normalisations and gains. With batch statistics SGD
with Nesterov momentum, at a rate in proportion to the batch; without them (norm=group, norm=none) AdamW, at a rate that
follows its square root. recipe=published is what a published study did: crop and flip, plain momentum, weight decay 1e-4
on everything. docs/tasks.md has what they reach, and what was tried and lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
from .models import SAMPLE_NORMS, Norm, mobilenetv2, resnet20, resnet50, start_from

MODELS: dict[str, Callable[..., nn.Module]] = {"mobilenetv2": mobilenetv2, "resnet20": resnet20, "resnet50": resnet50}
SCHEDULES = {"cosine": cosine, "linear": linear}
REFERENCE_BATCH = 128
RATE, PUBLISHED_RATE, ADAMW_RATE = 0.1, 0.05, 1e-3  # at that batch
HEAD_FEATURES = 160  # up to here the last layer learns at SGD's full rate
FIRST_IMAGES = 512  # what gains and biases start from without batch statistics


def make(
    model: Literal["mobilenetv2", "resnet20", "resnet50"] = "mobilenetv2",
    norm: Norm = "batch",
    width: float = 1.0,
    schedule: Literal["cosine", "linear"] = "cosine",
    rate: float | None = None,
    batch: int = REFERENCE_BATCH,
    recipe: Literal["ours", "published"] = "ours",
    small: bool = False,
) -> Task:
    """The task.

    Args:
        model: `mobilenetv2`, `resnet20` or `resnet50`
        norm: what follows each convolution: `batch` (BatchNorm), `ghost` (BatchNorm over 32 samples at a time), `group`
            (GroupNorm), `none` (a learnt gain and bias per channel) or `removed` (nothing)
        width: a factor for the number of channels
        schedule: how the learning rate falls to zero: `cosine` or `linear`
        rate: learning rate at batch size 128, scaled with the batch size; by default that of the recipe
        batch: batch size; `--batch-size` sets it too
        recipe: `ours`, or the plainer one of a `published` study
        small: halve the height and width of the images, for short runs

    Example:
        manyhands train cifar10:model=resnet20,small --epochs 2
    """
    positive("cifar10", "above 0", width=width, rate=1.0 if rate is None else rate, batch=batch)
    padding = 2 if small else 4
    moves: list[Callable[[Tensor, Tensor], Tensor]] = [augment.Crop(padding=padding), augment.Flip()]
    ours = recipe == "ours"
    if ours:
        moves.append(augment.Cutout(size=2 * padding))
    return Task(
        model=partial(network, model, norm, width, small),
        train=partial(images, "train", small),
        test=partial(images, "test", small),
        loss=partial(F.cross_entropy, label_smoothing=0.1) if ours else F.cross_entropy,
        optimizer=optimizer(norm, ours, rate, batch),
        schedule=SCHEDULES[schedule](warmup=0.08),
        augment=augment.Compose(*moves),
        batch_size=batch,
        epochs=60,
        name="cifar10",
    )


def images(split: str, small: bool = False) -> tuple[Tensor, Tensor]:
    """The images (uint8, count x 3 x 32 x 32, or 16 x 16) and labels of a split."""
    pictures, labels = files.cifar10_split(split)
    return (_halved(pictures) if small else pictures), labels


def _halved(pictures: Tensor) -> Tensor:
    """The mean of every four pixels."""
    return torch.cat([F.avg_pool2d(part.float(), 2).round().to(torch.uint8) for part in pictures.split(10_000)])


def network(model: str, norm: Norm, width: float, small: bool) -> nn.Module:
    """The model; without batch statistics its gains and biases start from the first training images."""
    made = MODELS[model](norm=norm, width=width)
    if norm in SAMPLE_NORMS:
        start_from(made, images("train", small)[0][:FIRST_IMAGES])
    return made


# ---------------------------------------------------------------- optimizers


def optimizer(norm: Norm, ours: bool, rate: float | None, batch: int) -> Callable[..., Optimizer]:
    if not ours:
        return partial(
            torch.optim.SGD, lr=scaled_rate(rate or PUBLISHED_RATE, batch, REFERENCE_BATCH), momentum=0.9, weight_decay=1e-4
        )  # fmt: skip
    if norm in SAMPLE_NORMS:
        return partial(adamw, rate=scaled_rate(rate or ADAMW_RATE, batch, REFERENCE_BATCH, "sqrt"))
    return partial(sgd, rate=scaled_rate(rate or RATE, batch, REFERENCE_BATCH))


def sgd(parameters: Iterable[tuple[str, nn.Parameter]], rate: float) -> Optimizer:
    """An update of the head moves the logits of all images together by its rate times the sum of squared features. Over
    MobileNetV2's 1280, all of them positive, that drowned what the rest learnt; so a wide head gets less of the rate.
    """
    groups = _groups(parameters, rate, 5e-4, lambda features: min(1.0, HEAD_FEATURES / features))
    return torch.optim.SGD(groups, lr=rate, momentum=0.9, nesterov=True)


def adamw(parameters: Iterable[tuple[str, nn.Parameter]], rate: float) -> Optimizer:
    """Gradients of layers without statistics differ in size a thousandfold; AdamW's steps do not."""
    return torch.optim.AdamW(_groups(parameters, rate, 0.05, lambda features: 1.0), lr=rate, betas=(0.9, 0.99))


def _groups(
    parameters: Iterable[tuple[str, nn.Parameter]], rate: float, decay: float, share: Callable[[int], float]
) -> list[dict[str, Any]]:
    """Weight decay for the weights of layers alone: gains and biases, one number a channel, would only shrink.

    `share` is the part of the rate that a head with so many features gets.
    """
    groups: dict[tuple[float, float], dict[str, Any]] = {}
    for name, value in parameters:
        own = (rate * (share(value.shape[1]) if value.ndim == 2 else 1.0), decay if value.ndim > 1 else 0.0)
        group = groups.setdefault(own, {"params": [], "lr": own[0], "weight_decay": own[1]})
        group["params"].append((name, value))
    return list(groups.values())


task = make()
