"""Augmentations that compute with values: ColourJitter, Normalise, Mixup; and LabelSmoothing, which is a loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import BadInput
from ..keys import as_tensor, constant, draw
from .arguments import check, check_fraction, describe, floats, per_channel, per_sample, set_fields


@dataclass(frozen=True)
class ColourJitter:
    """Change each image's brightness, contrast (around its mean grey) and saturation by factors of its own.

    A factor lies between 1 - amount and 1 + amount. In that order and without cutting off in between, so that the three
    are one linear map; at the end values are cut off at 0 and 1.
    """

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation"):
            check_fraction(f"ColourJitter {name}", getattr(self, name))

    def __call__(self, images: Tensor, keys: Tensor) -> Tensor:
        check(self, images, keys)
        if images.shape[1] not in (1, 3):
            raise BadInput(f"ColourJitter needs 1 channel or 3 (red, green, blue); found {images.shape[1]}")
        amounts = constant(((self.brightness,), (self.contrast,), (self.saturation,)), keys.device)
        brightness, contrast, saturation = 1 + (2 * draw(keys, 3) - 1) * amounts
        values = floats(images)
        grey = _grey(values)
        dark = grey.mean((1, 2, 3), keepdim=True) * per_sample(brightness * (1 - contrast))
        gain = brightness * contrast
        if images.shape[1] == 3:
            values = values * per_sample(gain * saturation) + grey * per_sample(gain * (1 - saturation))
        else:
            values = values * per_sample(gain)
        return values.add_(dark).clamp_(0, 1).to(torch.float32 if images.dtype == torch.uint8 else images.dtype)


def _grey(images: Tensor) -> Tensor:
    """How bright red, green and blue look to the eye (ITU-R BT.601), (n, 1, height, width)."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images[:, :1], images[:, 1:2], images[:, 2:]
    return (red * 0.299).add_(green, alpha=0.587).add_(blue, alpha=0.114)


@dataclass(frozen=True)
class Normalise:
    """(images - mean) / std for each channel, where uint8 counts as 0..1: mean and std are those of 0..1 images."""

    mean: float | tuple[float, ...]
    std: float | tuple[float, ...]

    def __post_init__(self) -> None:
        mean, std = per_channel(self.mean), per_channel(self.std)
        if len(mean) != len(std) or min(std, default=0) <= 0:
            raise BadInput(f"Normalise needs one mean and one std above 0 per channel (found {mean}, {std})")
        set_fields(self, mean=mean, std=std)

    def __call__(self, images: Tensor, keys: Tensor | None = None) -> Tensor:
        channels = len(per_channel(self.mean))
        if not isinstance(images, Tensor) or images.ndim != 4 or channels not in (1, images.shape[1]):
            raise BadInput(f"Normalise needs images (n, {channels}, height, width); found {describe(images)}")
        integers = images.dtype == torch.uint8
        gain, shift = _normalise_constants(self, 255 if integers else 1, images.device)
        return torch.mul(images, gain).add_(shift).to(torch.float32 if integers else images.dtype)


@lru_cache(maxsize=64)
def _normalise_constants(normalise: Normalise, unit: int, device: torch.device) -> tuple[Tensor, Tensor]:
    pairs = list(zip(per_channel(normalise.mean), per_channel(normalise.std), strict=True))
    gain = constant(tuple(((1 / (std * unit),),) for _, std in pairs), device)
    shift = constant(tuple(((-mean / std,),) for mean, std in pairs), device)
    return as_tensor(gain), as_tensor(shift)


@dataclass(frozen=True)
class Mixup:
    """Blend each image with one drawn from the whole training set, keeping its own target.

    `inputs` is a function that returns all training images; it is called once a process, and they are kept on the
    batch's device. A sample's partner is image floor(u * count) and its weight a quantile of Beta(alpha + 1, alpha),
    u and the quantile being numbers of its own key: neither depends on who else is in the batch or the shard.

    The usual mixup draws the weight w from Beta(alpha, alpha) and blends targets too. Where the loss is linear in the
    target, as cross-entropy is, a pair's loss w·loss(a) + (1 - w)·loss(b) has, over pairs drawn in either order, the
    same mean as loss(a) alone with w drawn in proportion to w: that is Beta(alpha + 1, alpha). So the expected gradient
    is the same, and targets and loss stay as they are.
    """

    inputs: Callable[[], Tensor]
    alpha: float = 0.2

    def __post_init__(self) -> None:
        if not callable(self.inputs):
            raise BadInput(f"Mixup inputs must be a function returning all images (found {type(self.inputs).__name__})")
        if not isinstance(self.alpha, int | float) or self.alpha <= 0:
            raise BadInput(f"Mixup alpha must be above 0 (found {self.alpha!r})")

    def __call__(self, images: Tensor, keys: Tensor) -> Tensor:
        check(self, images, keys)
        everyone = _held(self.inputs, images.device)
        if everyone.shape[1:] != images.shape[1:] or everyone.dtype != images.dtype:
            raise BadInput(f"Mixup inputs are {describe(everyone)} but the images {describe(images)}; put it first")
        chosen, level = (as_tensor(row) for row in draw(keys, 2))
        partners = everyone.index_select(0, (chosen * len(everyone)).long())
        table = mixup_weights(self.alpha, images.device)
        place = level * (len(table) - 1)
        below = place.long()
        weight = torch.lerp(table[below], table[below + 1], place - below)
        values = partners.float()
        values = (images - values).mul_(per_sample(weight)).add_(values)
        return values.mul_(1 / 255) if images.dtype == torch.uint8 else values.to(images.dtype)


@lru_cache(maxsize=4)
def _held(inputs: Callable[[], Tensor], device: torch.device) -> Tensor:
    return inputs().to(device)


@lru_cache(maxsize=16)
def mixup_weights(alpha: float, device: torch.device) -> Tensor:
    """Quantiles of Beta(alpha + 1, alpha) at 4096 equal steps of probability.

    The density x**alpha (1-x)**(alpha-1) is infinite at 1 for alpha < 1. In t = (1-x)**alpha it is
    (1 - t**(1/alpha))**alpha, which can be added up.
    """
    t = np.linspace(0, 1, 200_001)
    density = (1 - t ** (1 / alpha)) ** alpha
    mass = np.concatenate(([0.0], np.cumsum(density[1:] + density[:-1])))
    quantiles = 1 - np.interp(np.linspace(1, 0, 4097), mass / mass[-1], t) ** (1 / alpha)
    return as_tensor(constant(tuple(quantiles.tolist()), device))


@dataclass(frozen=True)
class LabelSmoothing:
    """A task's loss: cross-entropy where a target is 1 - `amount` its own class and `amount` all classes evenly."""

    amount: float = 0.1

    def __post_init__(self) -> None:
        check_fraction("LabelSmoothing amount", self.amount)

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output, target, label_smoothing=self.amount)
