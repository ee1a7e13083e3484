"""Augmentations that move pixels or blank them: Affine, Crop, Flip, Cutout."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import BadInput
from ..keys import Array, as_tensor, constant, counting, draw, library_of, whole
from .arguments import check, check_count, check_fraction, fill_for, pair, set_fields, spread, two


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
        scale = spread("Affine scale", pair("Affine scale", self.scale, "a pair (low, high)"))
        shear = two("Affine shear", (self.shear, 0) if isinstance(self.shear, int | float) else self.shear)
        if scale[0] <= 0:
            raise BadInput(f"Affine scale must be above 0 (found {self.scale!r})")
        if max(map(abs, shear)) >= 90:
            raise BadInput(f"Affine shear must be below 90 degrees (found {self.shear!r})")
        if self.mode not in ("bilinear", "nearest"):
            raise BadInput(f'Affine mode must be "bilinear" or "nearest" (found {self.mode!r})')
        degrees, translate = spread("Affine degrees", self.degrees), two("Affine translate", self.translate)
        set_fields(self, degrees=degrees, translate=translate, scale=scale, shear=shear)

    def __call__(self, images: Tensor, keys: Tensor) -> Tensor:
        check(self, images, keys)
        # grid_sample puts 0 outside, so with another fill the images are moved to where their fill is 0, and back
        fill = fill_for(self.fill, images)
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
    turn, (lean_x, lean_y) = spread("", affine.degrees), two("", affine.shear)
    x, y = two("", affine.translate)
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
        check_count("Crop padding", self.padding)
        if self.reflect and self.fill:
            raise BadInput(f"Crop pads with fill or reflect, not both (found fill={self.fill!r}, reflect=True)")

    def __call__(self, images: Tensor, keys: Tensor) -> Tensor:
        check(self, images, keys)
        n, channels, height, width = images.shape
        offsets = whole(draw(keys, 2) * (2 * self.padding + 1))
        rows = offsets[0][:, None] + counting(height, offsets)
        columns = offsets[1][:, None] + counting(width, offsets)
        if self.reflect:
            rows, columns = self._mirror(rows, height), self._mirror(columns, width)
        else:
            images = F.pad(images, (self.padding,) * 4, value=fill_for(self.fill, images))
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
        check_fraction("Flip p", self.p)

    def __call__(self, images: Tensor, keys: Tensor) -> Tensor:
        check(self, images, keys)
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
        check_count("Cutout size", self.size)

    def __call__(self, images: Tensor, keys: Tensor) -> Tensor:
        check(self, images, keys)
        height, width = images.shape[2:]
        place_y, place_x = draw(keys, 2)
        rows, columns = self._outside(place_y, height), self._outside(place_x, width)
        keep = torch.maximum(rows[:, :, None], columns[:, None, :])[:, None].to(images.dtype)
        fill = fill_for(self.fill, images)
        return images * keep + (1 - keep) * fill if fill else images * keep

    def _outside(self, places: Array, side: int) -> Tensor:
        """(n, side): 1 for rows that the square leaves alone, 0 for those it blanks."""
        first = whole(places * side) - self.size // 2
        away = counting(side, places) - first[:, None]
        return as_tensor((away < 0) | (away >= self.size)).to(torch.uint8)
