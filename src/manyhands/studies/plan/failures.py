"""What failures and checkpoints leave of the time, in closed form, and how often to write a checkpoint.

A run trains for an interval, then writes a checkpoint, and so on. The failure of any host, at any moment, stops all of them:
everybody restarts from the last complete checkpoint, and what was trained since is lost. A restart can fail as well.

    train ----> checkpoint | train --x  restart | train ----> checkpoint | ...
                               lost

Failures of a host are exponential: a host is as likely to fail after a year as when new, and n hosts together fail n times
as often. Papers: Young, "A first order approximation to the optimum checkpoint interval" (1974); Daly, "A higher order
estimate of the optimum checkpoint interval for restart dumps" (2006).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ...errors import BadInput


@dataclass(frozen=True)
class Failures:
    """How often a host fails, and how long it takes until all train again. By default, hosts never fail."""

    mean_seconds_between: float = math.inf  # of one host
    restart_seconds: float = 0.0  # to notice the failure, replace the host, start all ranks and read the checkpoint

    def __post_init__(self) -> None:
        if not self.mean_seconds_between > 0:
            found = f"{self.mean_seconds_between:g} s"
            raise BadInput(f"the mean time between failures of a host must be above 0 (found: {found}); write 30d, say")
        if not 0 <= self.restart_seconds < math.inf:
            raise BadInput(f"a restart must take 0 seconds or more (found: {self.restart_seconds:g} s)")

    def mean_seconds_of(self, hosts: int) -> float:
        """The mean time between failures of any of these hosts."""
        return self.mean_seconds_between / hosts


def youngs_interval(checkpoint_seconds: float, mean_seconds: float) -> float:
    """sqrt(2 C M): good where a checkpoint costs far less than the mean time M between failures of any host."""
    return math.sqrt(2 * checkpoint_seconds * mean_seconds)


def dalys_interval(checkpoint_seconds: float, mean_seconds: float) -> float:
    """sqrt(2 C M) (1 + sqrt(C / 2M) / 3 + (C / 2M) / 9) - C where C < 2M, else M: close to the best for any C."""
    ratio = checkpoint_seconds / (2 * mean_seconds)
    if ratio >= 1:
        return mean_seconds
    series = 1 + math.sqrt(ratio) / 3 + ratio / 9
    return youngs_interval(checkpoint_seconds, mean_seconds) * series - checkpoint_seconds


def goodput(interval_seconds: float, checkpoint_seconds: float, failures: Failures, hosts: int) -> float:
    """The share of wall time spent on training that is kept.

    With the mean time M between failures of any host, an interval t, checkpoints of C and restarts of R seconds:

        t / (M exp(R/M) (exp((t + C)/M) - 1)),  and  t / (t + C) without failures

    The denominator is the expected time until an interval and its checkpoint are complete. Intervals are independent, so
    this is exact for any whole number of them, not only in the long run.
    """
    check_checkpoints(interval_seconds, checkpoint_seconds)
    return math.exp(_log_goodput(interval_seconds, checkpoint_seconds, failures, hosts))


def best_checkpoint_interval(checkpoint_seconds: float, failures: Failures, hosts: int) -> float:
    """The interval with the most goodput: infinite without failures, else 0 where a checkpoint costs nothing."""
    check_checkpoints(1.0, checkpoint_seconds)
    mean = failures.mean_seconds_of(hosts)
    if math.isinf(mean):
        return math.inf
    if checkpoint_seconds == 0:
        return 0.0
    # The slope is 0 where t/M = 1 - exp(-(t + C)/M): once, and at a t below M.
    log_interval = _highest(
        lambda log: _log_goodput(math.exp(log), checkpoint_seconds, failures, hosts),
        math.log(mean) - 30,
        math.log(mean),
    )
    return math.exp(log_interval)


def check_checkpoints(interval_seconds: float, checkpoint_seconds: float) -> None:
    if not 0 < interval_seconds < math.inf:
        raise BadInput(f"the time between checkpoints must be above 0 (found: {interval_seconds:g} s)")
    if not 0 <= checkpoint_seconds < math.inf:
        raise BadInput(f"a checkpoint must take 0 seconds or more (found: {checkpoint_seconds:g} s)")


def _log_goodput(interval_seconds: float, checkpoint_seconds: float, failures: Failures, hosts: int) -> float:
    """As a logarithm, since exp(R/M) overflows where hosts fail much sooner than they restart."""
    mean, each = failures.mean_seconds_of(hosts), interval_seconds + checkpoint_seconds
    if math.isinf(mean):
        return math.log(interval_seconds / each)
    ratio = each / mean
    log_attempts = math.log(math.expm1(ratio)) if ratio < 1 else ratio + math.log1p(-math.exp(-ratio))
    return math.log(interval_seconds / mean) - failures.restart_seconds / mean - log_attempts


def _highest(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a function with a single peak is highest, by golden section."""
    golden = (math.sqrt(5) - 1) / 2
    left, right = high - golden * (high - low), low + golden * (high - low)
    at_left, at_right = function(left), function(right)
    while high - low > 1e-8:
        if at_left > at_right:
            high, right, at_right = right, left, at_left
            left = high - golden * (high - low)
            at_left = function(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + golden * (high - low)
            at_right = function(right)
    return (low + high) / 2
