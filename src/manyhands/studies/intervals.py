"""A ratio with its spread: what several rounds, or seeds, show of it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple


class Interval(NamedTuple):
    """A ratio as rounds show it: the median, the least and the largest."""

    middle: float
    low: float
    high: float


def interval(ratios: Sequence[float]) -> Interval:
    return Interval(statistics.median(ratios), min(ratios), max(ratios))
