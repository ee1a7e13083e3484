"""A step measured on one host, carried to thousands of hosts: network, stragglers, failures and checkpoints.

    step        = the slowest rank's step + what the network adds       (asynchronous: the mean rank's)
    steps       = total samples / samples per step
    wall time   = steps x step / goodput,  goodput = the share of the time that failures and checkpoints leave

Each of these is simulated from distributions (`stragglers.py`, `simulated_failures.py`) or has a closed form
(`collectives.py`, `failures.py`); docs/plan-at-scale.md lists what is assumed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ...errors import BadInput
from .collectives import all_reduce, exchange_with_servers
from .estimate import Estimate, estimate
from .failures import Failures, best_checkpoint_interval, check_checkpoints, goodput
from .link import Link
from .simulated_failures import simulate_wall_seconds
from .stragglers import Stragglers, simulate_slow_downs


@dataclass(frozen=True)
class ScaleForecast:
    """What a run on many hosts would do."""

    hosts: int
    ranks: int
    step_seconds: Estimate  # of single steps
    communication_seconds: float  # what the network adds to each step
    samples_per_second: Estimate  # of whole runs, while they train
    goodput: float  # the share of wall time in steps that are kept; times samples_per_second: the speed overall
    checkpoint_interval_seconds: float  # the best
    wall_seconds: Estimate  # until all samples are trained on, restarts and checkpoints included
    failures: float  # expected until then


def at_scale(
    step_seconds: float,
    ranks_per_host: int,
    hosts: int,
    link: Link,
    bytes_per_rank_over_link: float,
    synchronous: bool,
    stragglers: Stragglers,
    failures: Failures,
    checkpoint_seconds: float,
    samples_per_step: float,
    total_samples: float,
    seed: int = 0,
    *,
    overlap_seconds: float = 0.0,
) -> ScaleForecast:
    """Forecast a run on `hosts` hosts from `step_seconds`, the mean time of a rank's step without waiting for others.

    `bytes_per_rank_over_link` is what each rank brings to the exchange between hosts in every step. The ranks of a host share
    its link, so where they first reduce among themselves, as hierarchical all-reduce does, this is the size of the gradients
    divided by `ranks_per_host`. `samples_per_step` counts all ranks. Communication hides behind `overlap_seconds` of each step.
    """
    _check(
        step_seconds, ranks_per_host, hosts, bytes_per_rank_over_link, samples_per_step, total_samples, overlap_seconds
    )
    check_checkpoints(step_seconds, checkpoint_seconds)
    rng = np.random.default_rng(seed)
    exchange = all_reduce if synchronous else exchange_with_servers
    communication = exchange(hosts, ranks_per_host * bytes_per_rank_over_link, link)
    exposed = max(0.0, communication - overlap_seconds)

    steps = math.ceil(total_samples / samples_per_step)
    each = step_seconds * simulate_slow_downs(stragglers, hosts, ranks_per_host, synchronous, rng) + exposed
    # A run is the longer the slower its hosts; single steps matter less the more of them there are.
    luck = rng.standard_normal(len(each)) * each.std(axis=1) / math.sqrt(steps)
    mean_step = np.maximum(each.mean(axis=1) + luck, each.min(axis=1))
    work = steps * mean_step

    interval = _interval(float(work.mean()), step_seconds, checkpoint_seconds, failures, hosts)
    wall = simulate_wall_seconds(work, interval, checkpoint_seconds, failures, hosts, rng)
    return ScaleForecast(
        hosts=hosts,
        ranks=hosts * ranks_per_host,
        step_seconds=estimate(each),
        communication_seconds=exposed,
        samples_per_second=estimate(samples_per_step / mean_step),
        goodput=goodput(interval, checkpoint_seconds, failures, hosts),
        checkpoint_interval_seconds=interval,
        wall_seconds=estimate(wall),
        failures=float(wall.mean()) / failures.mean_seconds_of(hosts),
    )


def _interval(work: float, step: float, checkpoint_seconds: float, failures: Failures, hosts: int) -> float:
    """The best interval that divides the work evenly, not shorter than a step. The last checkpoint is the result."""
    best = best_checkpoint_interval(checkpoint_seconds, failures, hosts)
    return work / max(1, round(work / max(best, step)))


def _check(
    step_seconds: float,
    ranks_per_host: int,
    hosts: int,
    size: float,
    samples_per_step: float,
    total_samples: float,
    overlap_seconds: float,
) -> None:
    counts = {"hosts": hosts, "ranks per host": ranks_per_host, "samples per step": samples_per_step}
    for name, count in {**counts, "samples in total": total_samples}.items():
        if not 1 <= count < math.inf:
            raise BadInput(f"{name} must be 1 or more (found: {count:g})")
    if not 0 < step_seconds < math.inf:
        raise BadInput(f"a step must take more than 0 seconds (found: {step_seconds:g} s)")
    for name, amount in {"bytes over the link": size, "seconds of overlap": overlap_seconds}.items():
        if not 0 <= amount < math.inf:
            raise BadInput(f"{name} must be 0 or more (found: {amount:g})")
