"""How far two results are apart, and how far rounding alone may take them.

    noise of a tensor       how far `single` strays in it when its first weights move by one rounding, over a few draws
    tolerance of a tensor   FACTOR times its noise, or that of the median tensor where it happened to have less

Both are divided by the largest number in the tensor. The tensor that exceeds its tolerance most stands for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from statistics import median

import torch
from torch import Tensor

FACTOR = {torch.float32: 16.0, torch.float64: 1000.0}  # float64 sees what is real by many more digits than it needs
LEAST_ROUNDINGS = 8  # of the largest number: a tolerance is never less
SMALL = 1e-3  # of the largest tensor: smaller ones are measured against this

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Distance:
    """Of the tensor that is furthest out; `first` is the first in the model's order that is too far."""

    difference: float
    tolerance: float
    first: str | None = None
    first_difference: float = 0.0

    @property
    def same(self) -> bool:
        return self.first is None

    @property
    def times(self) -> float:
        """How often the tolerance fits into the difference."""
        return self.difference / self.tolerance if self.tolerance else (inf if self.difference else 0.0)


def distance(one: Tensors, other: Tensors, noise: Mapping[str, float], double: bool, most: float) -> Distance:
    """Between two results; no tolerance is above `most`, whatever the noise."""
    scales = _scales(one)
    kind = torch.float64 if double else torch.float32
    least = LEAST_ROUNDINGS * torch.finfo(kind).eps
    usual = median(noise.values()) if noise else 0.0
    worst, first = Distance(0.0, min(max(FACTOR[kind] * usual, least), most)), None
    for name, tensor in one.items():
        apart = _apart(tensor, other.get(name)) / scales[name]
        allowed = min(max(FACTOR[kind] * max(noise.get(name, 0.0), usual), least), most)
        found = Distance(apart if isfinite(apart) else inf, allowed)
        if found.times > 1 and first is None:
            first = name, apart
        if found.times > worst.times:
            worst = found
    return worst if first is None else Distance(worst.difference, worst.tolerance, *first)


def noise_of(base: Tensors, nudged: Sequence[Tensors]) -> dict[str, float]:
    """How far each tensor of floating-point numbers strays, relative to its largest number."""
    scales = _scales(base)
    return {
        name: max(_apart(tensor, other.get(name)) / scales[name] for other in nudged)
        for name, tensor in base.items()
        if tensor.is_floating_point() or tensor.is_complex()
    }


def _scales(tensors: Tensors) -> dict[str, float]:
    own = {name: float(tensor.abs().max()) if tensor.numel() else 0.0 for name, tensor in tensors.items()}
    largest = max((value for value in own.values() if isfinite(value)), default=0.0)
    return {name: max(value, SMALL * largest, 1e-30) for name, value in own.items()}


def _apart(one: Tensor, other: Tensor | None) -> float:
    if other is None or other.shape != one.shape:
        return inf
    if not one.numel() or torch.equal(one, other):
        return 0.0
    if one.is_complex():
        one, other = torch.view_as_real(one), torch.view_as_real(other)
    apart = float((one.double() - other.double()).abs().max())
    return apart if isfinite(apart) else inf
