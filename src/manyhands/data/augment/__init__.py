"""Augmentation of whole batches, on the batch's own device, as a pure function of one key a sample.

An augmentation is a callable `(input, keys) -> input`. `keys` is int64, one number a sample, made from (seed, epoch,
sample index), so a sample is augmented the same way on any device, in any shard and after a resume. Here the input is
one tensor of images, (n, channels, height, width): uint8 means 0..255, floating point 0..1. What only moves values
(Crop, Flip, Cutout) keeps uint8; what computes (Affine, ColourJitter, Normalise, Mixup) returns float32.

Nothing here waits for the device, copies to it (constants are kept there after the first call) or has a shape that
depends on values, so a step with its augmentation can be captured in a CUDA graph after one call to warm up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ...errors import BadInput
from ..keys import sample_keys, stream, uniform
from .arguments import set_fields
from .colour import ColourJitter, LabelSmoothing, Mixup, Normalise
from .geometry import Affine, Crop, Cutout, Flip

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
        set_fields(self, parts=parts)

    def __repr__(self) -> str:
        return f"Compose({', '.join(map(repr, self.parts))})"

    def __call__(self, images: Any, keys: Tensor) -> Any:
        for number, part in enumerate(self.parts):
            images = part(images, stream(keys, number))
        return images
