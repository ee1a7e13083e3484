"""Luck: no two steps of a rank are equally long, and those who wait for each other wait for the unluckiest.

    measured steps, sorted    | - - - | - - - | - - - | - - - |        a stretch for every simulated step,
    simulated steps             2nd     4th     1st     3rd            its mean, in an order of its own for every rank

Over the simulated steps every rank has all of its luck, good and bad, so those who do not wait for others are as fast as
without it, however few steps are simulated.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from functools import cache


def drawn(measured: Sequence[float], steps: int) -> Callable[[int, int], float]:
    """How many times as long as usual a process works in a step: the same every time it is asked."""
    if len(measured) < steps:
        return lambda process, step: 1.0
    ordered, mean = sorted(measured), statistics.fmean(measured)
    cuts = [round(place * len(ordered) / steps) for place in range(steps + 1)]
    stretches = [statistics.fmean(ordered[cuts[place] : cuts[place + 1]]) / mean for place in range(steps)]
    scale = steps / sum(stretches)  # they are not of exactly equal length

    @cache
    def order(process: int) -> list[float]:
        return random.Random(process).sample([scale * stretch for stretch in stretches], steps)

    return lambda process, step: order(process)[step % steps]
