"""Runs with failures, simulated from one failure to the next: how far apart the wall times of equal runs are."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import BadInput
from .failures import Failures, goodput

MOST_FAILURES = 2000  # simulated per run
LEAST_GOODPUT = 0.01  # with less, nobody would start the run, and nobody wants to wait for its simulation


class SimulatedGoodput(NamedTuple):
    goodput: float
    standard_error: float


def simulated_goodput(
    interval_seconds: float,
    checkpoint_seconds: float,
    failures: Failures,
    hosts: int,
    *,
    intervals: int = 20,
    runs: int = 1000,
    seed: int = 0,
) -> SimulatedGoodput:
    """The goodput of simulated runs of so many intervals: what `goodput` gives in closed form."""
    work, rng = np.full(runs, intervals * interval_seconds), np.random.default_rng(seed)
    wall = simulate_wall_seconds(work, interval_seconds, checkpoint_seconds, failures, hosts, rng)
    found = float(work[0] / wall.mean())
    return SimulatedGoodput(found, found * float(wall.std(ddof=1) / wall.mean()) / math.sqrt(runs))


def simulate_wall_seconds(
    work_seconds: NDArray[np.float64],
    interval_seconds: float,
    checkpoint_seconds: float,
    failures: Failures,
    hosts: int,
    rng: np.random.Generator,
) -> NDArray[np.float64]:
    """The wall time of one run for each entry of `work_seconds`, which is what its steps alone take.

    A run is cut into equal intervals of about the given length. One that would meet very many failures is simulated in part:
    the mean of wall / work is the same for m such parts together, and its deviation is sqrt(m) times smaller.
    """
    share = goodput(interval_seconds, checkpoint_seconds, failures, hosts)
    steady = interval_seconds / (
        interval_seconds + checkpoint_seconds
    )  # a job shorter than a checkpoint is no failure's doing
    _refuse_hopeless(share / steady, checkpoint_seconds, failures, hosts)
    expected = float(work_seconds.mean()) / share / failures.mean_seconds_of(hosts)
    parts = max(1.0, expected / MOST_FAILURES)
    whole = np.maximum(1.0, np.round(work_seconds / interval_seconds))
    intervals, seconds_each = np.maximum(1.0, np.round(whole / parts)), work_seconds / whole
    wall = _simulate(intervals, seconds_each + checkpoint_seconds, failures, hosts, rng)
    ratio = wall / (intervals * seconds_each)
    return work_seconds * (ratio.mean() + (ratio - ratio.mean()) / math.sqrt(parts)) if parts > 1 else wall


def _simulate(
    intervals: NDArray[np.float64],
    seconds_each: NDArray[np.float64],
    failures: Failures,
    hosts: int,
    rng: np.random.Generator,
) -> NDArray[np.float64]:
    """Wall seconds until each run has all its intervals, with their checkpoints. All runs move on to their next failure at once."""
    mean = failures.mean_seconds_of(hosts)
    if math.isinf(mean):
        return intervals * seconds_each
    wall, left, running, restart = np.zeros_like(intervals), intervals.copy(), np.arange(intervals.size), 0.0
    while running.size:
        until_failure = rng.exponential(mean, running.size)
        trained = np.maximum(until_failure - restart, 0.0)  # nothing where the restart itself failed
        completed = np.floor(trained / seconds_each[running])
        done = completed >= left[running]
        wall[running] += np.where(done, restart + left[running] * seconds_each[running], until_failure)
        left[running] -= completed
        running, restart = running[~done], failures.restart_seconds
    return wall


def _refuse_hopeless(share: float, checkpoint_seconds: float, failures: Failures, hosts: int) -> None:
    if share < LEAST_GOODPUT and failures.mean_seconds_between < math.inf:
        every = f"{hosts:,} hosts fail every {failures.mean_seconds_of(hosts):,.3g} s on average"
        costs = f"restarts of {failures.restart_seconds:,.3g} s and checkpoints of {checkpoint_seconds:,.3g} s"
        raise BadInput(
            f"{every}, too often for {costs}: less than 1 % of the time would train; use fewer hosts, or make these quicker"
        )
