"""Augmentation of whole batches, on the batch's own device, as a pure function of one key a sample.

An augmentation is a callable `(input, keys) -> input`. `keys` is int64, one number a sample, made from (seed, epoch,
sample index), so a sample is augmented the same way on any device, in any shard and after a resume. Here the input is
one tensor of images, (n, channels, height, width): uint8 means 0..255, floating point 0..1. What only moves values
(Crop, Flip, Cutout) keeps uint8; what computes (Affine, ColourJitter, Normalise, Mixup) returns float32.

Nothing here waits for the device, copies to it (constants are kept there after the first call) or has a shape that
depends on values, so a step with its augmentation can be captured in a CUDA graph after one call to warm up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import BadInput
from .keys import Array, as_tensor, constant, counting, draw, library_of, sample_keys, stream, uniform, whole

__all__ = [
    "uniform",
    "stream",
    "sample_keys",
    "Compose",
    "Affine",
    "Crop",
    "Flip",
    "Cutout",
    "ColourJitter",
    "Normalise",
    "Mixup",
    "LabelSmoothing",
]


@dataclass(frozen=True, init=False)
class Compose:
    """One after another. Each part has a stream of numbers of its own, which later parts do not change."""

    parts: tuple[Callable[[Any, Tensor], Any], ...]

    def __init__(self, *parts: Callable[[Any, Tensor], Any]):
        for part in parts:
            if not callable(part):
                raise BadInput(f"Compose takes callables (input, keys) -> input (found {part!r})")
        _set(self, parts=parts)

    def __repr__(self) -> str:
        return f"Compose({', '.join(map(repr, self.parts))})"

    def __call__(self, images: Any, keys: Tensor) -> Any:
        for number, part in enumerate(self.parts):
            images = part(images, stream(keys, number))
        return images


@dataclass(frozen=True)
class Affine:
    """Turn, scale, shear and shift each image about its centre, by amounts of its own.

    `degrees`: clockwise turn, (low, high) or one number for both sides of 0. `translate`: the most it shifts, as a
    fraction of width and height, one number or (x, y). `scale`: (low, high). `shear`: the most it leans, in degrees,
    one number (along x) or (x, y). What comes in from outside has the value `fill`; `mode` is "bilinear" or "nearest".
    With x to the right, y down and 0 in the centre, a point of the image goes to

        turn(angle) · scale · [1 tan(shear_x); 0 1] · [1 0; tan(shear_y) 1] · point + shift
    """

    degrees: float | tuple[float, float] = 0.0
    translate: float | tuple[float, float] = 0.0
    scale: tuple[float, float] = (1.0, 1.0)
    shear: float | tuple[float, float] = 0.0
    fill: float = 0.0
    mode: str = "bilinear"

    def __post_init__(self) -> None:
        scale = _range("Affine scale", _pair("Affine scale", self.scale, "a pair (low, high)"))
        shear = _two("Affine shear", (self.shear, 0) if isinstance(self.shear, int | float) else self.shear)
        if scale[0] <= 0:
            raise BadInput(f"Affine scale must be above 0 (found {self.scale!r})")
        if max(map(abs, shear)) >= 90:
            raise BadInput(f"Affine shear must be below 90 degrees (found {self.shear!r})")
        if self.mode not in ("bilinear", "nearest"):
            raise BadInput(f'Affine mode must be "bilinear" or "nearest" (found {self.mode!r})')
        degrees, translate = _range("Affine degrees", self.degrees), _two("Affine translate", self.translate)
        _set(self, degrees=degrees, translate=translate, scale=scale, shear=shear)

    def __call__(self, images: Tensor, keys: Tensor) -> Tensor:
        _check(self, images, keys)
        # grid_sample puts 0 outside, so with another fill the images are moved to where their fill is 0, and back
        fill = _fill(self.fill, images)
        values = images.float() - fill if fill else images.float()
        values = F.grid_sample(values, self.grid(keys, *images.shape[2:]), self.mode, "zeros", align_corners=False)
        values = values.add_(fill) if fill else values
        return values.mul_(1 / 255) if images.dtype == torch.uint8 else values.to(images.dtype)

    def grid(self, keys: Tensor, height: int, width: int) -> Tensor:
        """Where each pixel of the result comes from, (n, height, width, 2), as `grid_sample` counts: -1..1."""
        low, span, quarters, per_side, xs, ys = _affine_constants(self, height, width, keys.device)
        angle, scale, lean_x, lean_y, shift_x, shift_y = draw(keys, 6) * span + low
        xp = library_of(angle)
        # The inverse map, row by row; sin alone gives (cos, sin) and (-sin, cos), the rows of the turn back
        turns = xp.sin(angle + quarters) / scale
        row_x = turns[:2] - xp.tan(lean_x) * turns[2:]
        row_y = turns[2:] - xp.tan(lean_y) * row_x
        matrix = xp.concatenate((row_x, row_y)).reshape(2, 2, -1, 1) * per_side  # source axis, result axis, sample, 1
        along_x = matrix[:, 0] * (xs - shift_x[:, None])
        along_y = matrix[:, 1] * (ys - shift_y[:, None])
        return (as_tensor(along_x)[:, :, None, :] + as_tensor(along_y)[:, :, :, None]).permute(1, 2, 3, 0)


@lru_cache(maxsize=64)
def _affine_constants(affine: Affine, height: int, width: int, device: torch.device) -> tuple[Array, ...]:
    turn, (lean_x, lean_y) = _range("", affine.degrees), _two("", affine.shear)
    x, y = _two("", affine.translate)
    angles = [tuple(map(math.radians, ends)) for ends in (turn, (-lean_x, lean_x), (-lean_y, lean_y))]
    ranges = [angles[0], affine.scale, *angles[1:], (-x * width, x * width), (-y * height, y * height)]
    return (
        constant(tuple((low,) for low, _ in ranges), device),
        constant(tuple((high - low,) for low, high in ranges), device),
        constant(((math.pi / 2,), (0.0,), (math.pi,), (math.pi / 2,)), device),
        constant((((2 / width,),), ((2 / height,),)), device)[:, None],
        constant(tuple(i - (width - 1) / 2 for i in range(width)), device),
        constant(tuple(i - (height - 1) / 2 for i in range(height)), device),
    )


@dataclass(frozen=True)
class Crop:
    """Pad each side by `padding` pixels (with the value `fill`, or mirrored) and cut the old size at a random place."""

    padding: int
    fill: float = 0.0
    reflect: bool = False

    def __post_init__(self) -> None:
        _count("Crop padding", self.padding)
        if self.reflect and self.fill:
            raise BadInput(f"Crop pads with fill or reflect, not both (found fill={self.fill!r}, reflect=True)")

    def __call__(self, images: Tensor, keys: Tensor) -> Tensor:
        _check(self, images, keys)
        n, channels, height, width = images.shape
        offsets = whole(draw(keys, 2) * (2 * self.padding + 1))
        rows = offsets[0][:, None] + counting(height, offsets)
        columns = offsets[1][:, None] + counting(width, offsets)
        if self.reflect:
            rows, columns = self._mirror(rows, height), self._mirror(columns, width)
        else:
            images = F.pad(images, (self.padding,) * 4, value=_fill(self.fill, images))
        places = as_tensor(rows * images.shape[3])[:, :, None] + as_tensor(columns)[:, None, :]
        places = places.view(n, 1, height * width).expand(-1, channels, -1)
        return images.flatten(2).gather(2, places).view(n, channels, height, width)

    def _mirror(self, places: Array, size: int) -> Array:
        """Where a padded row is in the image when the edge is a mirror: 2 1 | 0 1 2 ... 7 8 9 | 8 7."""
        if self.padding >= size:
            raise BadInput(f"Crop can mirror at most size - 1 pixels (padding: {self.padding}, size: {size})")
        return size - 1 - abs(size - 1 - abs(places - self.padding))


@dataclass(frozen=True)
class Flip:
    """Mirror an image left to right with probability `p`."""

    p: float = 0.5

    def __post_init__(self) -> None:
        _fraction("Flip p", self.p)

    def __call__(self, images: Tensor, keys: Tensor) -> Tensor:
        _check(self, images, keys)
        # choosing whole rows of (images, mirrored images) copies memory; torch.where would test every pixel
        both = torch.cat((images, images.flip(-1)))
        flipped = as_tensor(draw(keys, 1)[0] < self.p)
        return both.index_select(0, torch.arange(len(images), device=images.device) + len(images) * flipped)


@dataclass(frozen=True)
class Cutout:
    """Blank a square of `size` pixels around a random pixel of each image; at an edge part of it falls outside."""

    size: int
    fill: float = 0.0

    def __post_init__(self) -> None:
        _count("Cutout size", self.size)

    def __call__(self, images: Tensor, keys: Tensor) -> Tensor:
        _check(self, images, keys)
        height, width = images.shape[2:]
        place_y, place_x = draw(keys, 2)
        rows, columns = self._outside(place_y, height), self._outside(place_x, width)
        keep = torch.maximum(rows[:, :, None], columns[:, None, :])[:, None].to(images.dtype)
        fill = _fill(self.fill, images)
        return images * keep + (1 - keep) * fill if fill else images * keep

    def _outside(self, places: Array, side: int) -> Tensor:
        """(n, side): 1 for rows that the square leaves alone, 0 for those it blanks."""
        first = whole(places * side) - self.size // 2
        away = counting(side, places) - first[:, None]
        return as_tensor((away < 0) | (away >= self.size)).to(torch.uint8)


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
            _fraction(f"ColourJitter {name}", getattr(self, name))

    def __call__(self, images: Tensor, keys: Tensor) -> Tensor:
        _check(self, images, keys)
        if images.shape[1] not in (1, 3):
            raise BadInput(f"ColourJitter needs 1 channel or 3 (red, green, blue); found {images.shape[1]}")
        amounts = constant(((self.brightness,), (self.contrast,), (self.saturation,)), keys.device)
        brightness, contrast, saturation = 1 + (2 * draw(keys, 3) - 1) * amounts
        values = _floats(images)
        grey = _grey(values)
        dark = grey.mean((1, 2, 3), keepdim=True) * _per_sample(brightness * (1 - contrast))
        gain = brightness * contrast
        if images.shape[1] == 3:
            values = values * _per_sample(gain * saturation) + grey * _per_sample(gain * (1 - saturation))
        else:
            values = values * _per_sample(gain)
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
        mean, std = _channels(self.mean), _channels(self.std)
        if len(mean) != len(std) or min(std, default=0) <= 0:
            raise BadInput(f"Normalise needs one mean and one std above 0 a channel (found {mean}, {std})")
        _set(self, mean=mean, std=std)

    def __call__(self, images: Tensor, keys: Tensor | None = None) -> Tensor:
        channels = len(_channels(self.mean))
        if not isinstance(images, Tensor) or images.ndim != 4 or channels not in (1, images.shape[1]):
            raise BadInput(f"Normalise needs images (n, {channels}, height, width); found {_describe(images)}")
        integers = images.dtype == torch.uint8
        gain, shift = _normalise_constants(self, 255 if integers else 1, images.device)
        return torch.mul(images, gain).add_(shift).to(torch.float32 if integers else images.dtype)


@lru_cache(maxsize=64)
def _normalise_constants(normalise: Normalise, unit: int, device: torch.device) -> tuple[Tensor, Tensor]:
    pairs = list(zip(_channels(normalise.mean), _channels(normalise.std), strict=True))
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
        _check(self, images, keys)
        everyone = _held(self.inputs, images.device)
        if everyone.shape[1:] != images.shape[1:] or everyone.dtype != images.dtype:
            raise BadInput(f"Mixup inputs are {_describe(everyone)} but the images {_describe(images)}; put it first")
        chosen, level = (as_tensor(row) for row in draw(keys, 2))
        partners = everyone.index_select(0, (chosen * len(everyone)).long())
        table = _mixup_weights(self.alpha, images.device)
        place = level * (len(table) - 1)
        below = place.long()
        weight = torch.lerp(table[below], table[below + 1], place - below)
        values = partners.float()
        values = (images - values).mul_(_per_sample(weight)).add_(values)
        return values.mul_(1 / 255) if images.dtype == torch.uint8 else values.to(images.dtype)


@lru_cache(maxsize=4)
def _held(inputs: Callable[[], Tensor], device: torch.device) -> Tensor:
    return inputs().to(device)


@lru_cache(maxsize=16)
def _mixup_weights(alpha: float, device: torch.device) -> Tensor:
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
        _fraction("LabelSmoothing amount", self.amount)

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output, target, label_smoothing=self.amount)


def _check(augmentation: object, images: object, keys: object) -> None:
    name = type(augmentation).__name__
    if not isinstance(images, Tensor):
        raise BadInput(
            f"{name} augments one tensor of images, but the input is a {type(images).__name__}; "
            "for nested inputs give a function (input, keys) -> input that calls it on the images"
        )
    if images.ndim != 4 or not (images.dtype == torch.uint8 or images.is_floating_point()):
        raise BadInput(
            f"{name} augments images (n, channels, height, width) of uint8 or floating point; found {_describe(images)}"
        )
    if not isinstance(keys, Tensor) or keys.dtype != torch.int64 or keys.shape != images.shape[:1]:
        raise BadInput(
            f"{name} needs one int64 key a sample (expected int64 ({len(images)},), found {_describe(keys)})"
        )
    if keys.device != images.device:
        raise BadInput(f"{name}: the images are on {images.device} but the keys on {keys.device}; move the keys there")


def _describe(value: object) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"


def _floats(images: Tensor) -> Tensor:
    """0..1 in floating point."""
    return images * (1 / 255) if images.dtype == torch.uint8 else images


def _fill(value: float, images: Tensor) -> float:
    """A fill, which is a value of 0..1 images, as a value of these."""
    if images.dtype != torch.uint8:
        return value
    _fraction("fill for uint8 images", value)
    return round(255 * value)


def _per_sample(numbers: Array) -> Tensor:
    return as_tensor(numbers)[:, None, None, None]


def _set(augmentation: object, **fields: object) -> None:
    """Write a frozen dataclass's fields in one form, so that equal augmentations compare and print alike."""
    for name, value in fields.items():
        object.__setattr__(augmentation, name, value)


def _pair(name: str, value: object, what: str) -> tuple[float, float]:
    if isinstance(value, Sequence) and len(value) == 2 and all(isinstance(v, int | float) for v in value):
        return float(value[0]), float(value[1])
    raise BadInput(f"{name} must be {what} (found {value!r})")


def _range(name: str, value: object) -> tuple[float, float]:
    """A number means from -number to +number."""
    if isinstance(value, int | float):
        value = (0.0 - abs(value), abs(value))  # 0 - 0, for it prints better than -0
    low, high = _pair(name, value, "a number or a pair (low, high)")
    if low > high:
        raise BadInput(f"{name} must go from low to high (found {value!r})")
    return low, high


def _two(name: str, value: object) -> tuple[float, float]:
    """A number means (number, number)."""
    return _pair(name, (value, value) if isinstance(value, int | float) else value, "a number or a pair (x, y)")


def _channels(value: float | Sequence[float]) -> tuple[float, ...]:
    return tuple(map(float, value if isinstance(value, Sequence) else (value,)))


def _fraction(name: str, value: object) -> None:
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise BadInput(f"{name} must be a number from 0 to 1 (found {value!r})")


def _count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadInput(f"{name} must be a whole number of at least 1 (found {value!r})")
