"""Paces: with equal work, ranks are not equally fast, and those that wait for each other wait for the slowest.

    16 virtual cores on a host that gives some of them half of a real one

    rank 0  ----------.....|      1.0 times as long as rank 0
    rank 1  ---------------|      1.5 times, for as long as both train

Which rank is slow changes from run to run, so what is kept of a run is how long each of its ranks works over their mean, the
slowest first. Luck (luck.py) is what changes from step to step; it evens out over steps, and this does not.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence


def spread(runs: Sequence[Sequence[float]]) -> list[float]:
    """From the work of each rank in runs with equally many: the slowest first, over their mean; of several runs the mean."""
    ordered = [sorted((work / statistics.fmean(run) for work in run), reverse=True) for run in runs]
    return [statistics.fmean(place) for place in zip(*ordered, strict=True)]


def dealt(measured: Mapping[int, Sequence[float]], ranks: int) -> list[float]:
    """How many times as long as their mean each of so many ranks works, in an order of no meaning that is always the same.

    From the measured number of ranks that is nearest, at the same places in its order.
    """
    if ranks < 2 or not measured:
        return [1.0] * ranks
    known = measured[min(measured, key=lambda count: (abs(count - ranks), -count))]
    found = [known[int((place + 0.5) * len(known) / ranks)] for place in range(ranks)]
    mean = statistics.fmean(found)
    return random.Random(ranks).sample([pace / mean for pace in found], ranks)
