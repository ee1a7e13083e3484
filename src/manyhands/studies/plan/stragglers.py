"""How much longer a step takes because ranks are not equally fast.

A rank's step time varies from step to step, independently of all others (lognormal, so that late ranks are later than early
ones are early). A share of the hosts may be slow for the whole run. Ranks that wait for each other take as long as the
slowest; the more of them, the slower. Ranks that do not wait add up their speeds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from ...errors import BadInput
from .estimate import Estimate, estimate

RUNS = STEPS = 1000  # that are simulated: runs, and steps of each


@dataclass(frozen=True)
class Stragglers:
    """How ranks differ in speed. By default, they do not."""

    spread: float = 0.0  # standard deviation of a rank's step time over its mean
    slow_share: float = 0.0  # the chance of each host to be slow, for the whole run
    slow_factor: float = 1.0  # how many times as long the step of a slow host takes

    def __post_init__(self) -> None:
        if not 0 <= self.spread < math.inf:
            raise BadInput(f"the spread of step times must be 0 or more (found: {self.spread:g}); 0.05 means 5 %")
        if not 0 <= self.slow_share <= 1:
            raise BadInput(f"the share of slow hosts must be between 0 and 1 (found: {self.slow_share:g})")
        if not 1 <= self.slow_factor < math.inf:
            raise BadInput(f"slow hosts must take at least 1 times as long (found: {self.slow_factor:g})")


def slow_down(stragglers: Stragglers, hosts: int, ranks_per_host: int, synchronous: bool, *, seed: int = 0) -> Estimate:
    """How many times as long as a lone rank's a step takes: the mean, and the interval of single steps."""
    rng = np.random.default_rng(seed)
    return estimate(simulate_slow_downs(stragglers, hosts, ranks_per_host, synchronous, rng))


def simulate_slow_downs(
    stragglers: Stragglers, hosts: int, ranks_per_host: int, synchronous: bool, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Slow-downs by run and step. Runs differ in their slow hosts alone; they share the luck of their steps.

    Equal luck makes the means of runs comparable: over a long run that luck averages out, and would only add noise here.
    """
    slow_hosts, run = np.unique(rng.binomial(hosts, stragglers.slow_share, RUNS), return_inverse=True)
    slow_hosts = slow_hosts[:, None]
    if synchronous:
        fast = _slowest_of((hosts - slow_hosts) * ranks_per_host, stragglers.spread, rng)
        slow = _slowest_of(slow_hosts * ranks_per_host, stragglers.spread, rng) * stragglers.slow_factor
        return np.maximum(fast, slow)[run]
    share = slow_hosts / hosts
    speed = 1 - share + share / stragglers.slow_factor
    return (_mean_of(hosts * ranks_per_host, stragglers.spread, rng) / speed)[run]


def _slowest_of(ranks: NDArray[np.int64], spread: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """The step times of the slowest of so many ranks, relative to the mean rank; 0 for no ranks.

    The slowest of n has the distribution F^n, so it is F^-1(U^(1/n)) for one uniform U: exact, and a million ranks cost as
    little as one. With U = exp(-e), 1 - U^(1/n) = 1 - exp(-e/n) keeps its digits where U^(1/n) would round to 1.
    """
    exponential = rng.exponential(size=STEPS)
    if spread == 0:
        return np.where(ranks > 0, np.ones(STEPS), 0.0)
    tail = np.clip(-np.expm1(-exponential / np.maximum(ranks, 1)), 1e-300, 1 - 1e-16)
    normal = -np.fromiter(map(NormalDist().inv_cdf, tail.ravel()), float, tail.size).reshape(tail.shape)
    return np.where(ranks > 0, _lognormal(normal, spread), 0.0)


def _mean_of(ranks: int, spread: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """The mean step times of so many ranks: about lognormal again, with a spread sqrt(n) times smaller."""
    return _lognormal(rng.standard_normal(STEPS), spread / math.sqrt(ranks))


def _lognormal(normal: NDArray[np.float64], spread: float) -> NDArray[np.float64]:
    """Lognormal numbers of mean 1 with this standard deviation."""
    variance = math.log1p(spread**2)
    return np.exp(math.sqrt(variance) * normal - variance / 2)
