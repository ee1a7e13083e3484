"""Intervals that earlier forecasts have earned: split-conformal, from the ratios measured / forecast.

If the next ratio is exchangeable with the n known ones, it is equally likely to fall into each of the n + 1 gaps between
them. Between the k-th smallest and the k-th largest are n + 1 - 2k of those gaps; so with k = floor((n + 1) * 0.1) the
interval contains it with a probability of 80 % at least, whatever the distribution and however few there are.
(Vovk, Gammerman and Shafer, Algorithmic Learning in a Random World, 2005.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .scores import Score

FEWEST = 20  # scores; intervals from fewer would be about as wide as the worst forecast so far
COVERAGE = 0.8


def calibrated(scores: Sequence[Score], basis: str | None) -> tuple[float, float] | None:
    """The ratios between which 80 % of measured / forecast lie: a forecast times these is its interval.

    Only scores of this basis count ("measured" or "simulated"); None where there are fewer than 20.
    """
    ratios = sorted(one.measured / one.forecast_speed for one in scores if one.basis == basis)
    if len(ratios) < FEWEST:
        return None
    outside = math.floor((len(ratios) + 1) * (1 - COVERAGE) / 2 + 1e-9)  # 1 - 0.8 is a little less than 0.2
    return ratios[outside - 1], ratios[-outside]
