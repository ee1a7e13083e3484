"""Intervals that earlier forecasts have earned: split-conformal, from how far measured speeds were from their forecasts.

If the next ratio measured / forecast is exchangeable with the n known ones, the size of its logarithm is equally likely to
fall into each of the n + 1 gaps between theirs. So the k-th smallest, k = ceil(0.8 (n + 1)), bounds it with a probability
of 80 % at least, whatever the distribution and however few there are.
(Vovk, Gammerman and Shafer, Algorithmic Learning in a Random World, 2005.)

Sizes count and not signs, so a forecast times 1 / bound .. bound is the interval: what was too high together was measured in
one state of the machine, which says nothing of the next one's direction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .scores import Score

FEWEST = 20  # scores; intervals from fewer would be about as wide as the worst forecast so far
COVERAGE = 0.8
ROUNDING = 1e-9  # what lies on a bound lies inside


def calibrated(scores: Sequence[Score], basis: str | None) -> tuple[float, float] | None:
    """The ratios between which 80 % of measured / forecast lie: a forecast times these is its interval.

    Only scores of this basis count ("measured" or "simulated"); None where there are fewer than 20.
    """
    sizes = sorted(abs(math.log(one.measured / one.forecast_speed)) for one in scores if one.basis == basis)
    if len(sizes) < FEWEST:
        return None
    place = math.ceil((len(sizes) + 1) * COVERAGE - ROUNDING)
    bound = math.exp(sizes[place - 1]) * (1 + ROUNDING)
    return 1 / bound, bound
