"""A figure that varies from case to case: what to expect of it, and between what it mostly lies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Estimate:
    """The mean of simulated cases and their 80 % interval: one case in ten is below `low`, one in ten above `high`.

    Rare and costly events (one failure in twenty runs) can raise the mean above `high`. The mean is what adds up: over the
    steps of a run, or over the costs of several runs.
    """

    expected: float
    low: float
    high: float


def estimate(cases: NDArray[np.float64]) -> Estimate:
    low, high = np.quantile(cases, (0.1, 0.9))
    return Estimate(float(cases.mean()), float(low), float(high))
