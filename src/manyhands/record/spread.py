"""How far measurements lie apart: their middle, their outer parts, and which of them count."""

from __future__ import annotations

import math
from collections.abc import Sequence


def trimmed(values: Sequence[float]) -> list[float]:
    """In order; of eight or more the outermost eighth on each side is left out, so that more measuring does not mean
    more doubt."""
    cut = len(values) // 8
    return sorted(values)[cut : len(values) - cut]


def quantile(values: Sequence[float], share: float) -> float | None:
    """The value below which this share of them lies, between two of them by interpolation; None without any."""
    if not values:
        return None
    ordered, place = sorted(values), share * (len(values) - 1)
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    return low + (high - low) * (place - math.floor(place))
