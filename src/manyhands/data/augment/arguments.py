"""What augmentations ask of their settings and of the images they get, and how the small numbers are prepared."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...errors import BadInput
from ..keys import Array, as_tensor


def check(augmentation: object, images: object, keys: object) -> None:
    name = type(augmentation).__name__
    if not isinstance(images, Tensor):
        raise BadInput(
            f"{name} augments one tensor of images, but the input is a {type(images).__name__}; "
            "for nested inputs give a function (input, keys) -> input that calls it on the images"
        )
    if images.ndim != 4 or not (images.dtype == torch.uint8 or images.is_floating_point()):
        raise BadInput(
            f"{name} augments images (n, channels, height, width) of uint8 or floating point; found {describe(images)}"
        )
    if not isinstance(keys, Tensor) or keys.dtype != torch.int64 or keys.shape != images.shape[:1]:
        raise BadInput(
            f"{name} needs one int64 key per sample (expected int64 ({len(images)},), found {describe(keys)})"
        )
    if keys.device != images.device:
        raise BadInput(f"{name}: the images are on {images.device} but the keys on {keys.device}; move the keys there")


def describe(value: object) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"


def floats(images: Tensor) -> Tensor:
    """0..1 in floating point."""
    return images * (1 / 255) if images.dtype == torch.uint8 else images


def fill_for(value: float, images: Tensor) -> float:
    """A fill, which is a value of 0..1 images, as a value of these."""
    if images.dtype != torch.uint8:
        return value
    check_fraction("fill for uint8 images", value)
    return round(255 * value)


def per_sample(numbers: Array) -> Tensor:
    return as_tensor(numbers)[:, None, None, None]


def set_fields(augmentation: object, **fields: object) -> None:
    """Write a frozen dataclass's fields in one form, so that equal augmentations compare and print alike."""
    for name, value in fields.items():
        object.__setattr__(augmentation, name, value)


def pair(name: str, value: object, what: str) -> tuple[float, float]:
    if isinstance(value, Sequence) and len(value) == 2 and all(isinstance(v, int | float) for v in value):
        return float(value[0]), float(value[1])
    raise BadInput(f"{name} must be {what} (found {value!r})")


def spread(name: str, value: object) -> tuple[float, float]:
    """A number means from -number to +number."""
    if isinstance(value, int | float):
        value = (0.0 - abs(value), abs(value))  # 0 - 0, for it prints better than -0
    low, high = pair(name, value, "a number or a pair (low, high)")
    if low > high:
        raise BadInput(f"{name} must go from low to high (found {value!r})")
    return low, high


def two(name: str, value: object) -> tuple[float, float]:
    """A number means (number, number)."""
    return pair(name, (value, value) if isinstance(value, int | float) else value, "a number or a pair (x, y)")


def per_channel(value: float | Sequence[float]) -> tuple[float, ...]:
    return tuple(map(float, value if isinstance(value, Sequence) else (value,)))


def check_fraction(name: str, value: object) -> None:
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise BadInput(f"{name} must be a number from 0 to 1 (found {value!r})")


def check_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadInput(f"{name} must be a whole number of at least 1 (found {value!r})")
