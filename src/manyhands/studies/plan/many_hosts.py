"""A plan for many hosts: what one host was forecast to do, on a thousand of them that fail and differ in speed (at_scale.py)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import BadInput
from ...record.forecast import Forecast
from ..contenders import Contender
from .at_scale import ScaleForecast, at_scale
from .calibrate import Calibration
from .estimate import Estimate
from .failures import Failures
from .link import Link
from .stragglers import Stragglers


@dataclass(frozen=True)
class Fleet:
    """Many hosts like this one, with so many ranks each. Every host takes the task's batch: the global one grows with them."""

    hosts: int
    ranks_per_host: int
    link: Link
    failures: Failures
    stragglers: Stragglers
    checkpoint_seconds: float

    def __post_init__(self) -> None:
        for name in ("hosts", "ranks_per_host"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise BadInput(f"{name} must be a whole number of at least 1 (found {value!r})")
        if not 0 <= self.checkpoint_seconds < math.inf:
            raise BadInput(f"a checkpoint must take 0 seconds or more (found: {self.checkpoint_seconds:g} s)")


@dataclass(frozen=True)
class FleetForecast:
    """A row on all hosts, or why it comes to nothing there."""

    strategy: str
    forecast: ScaleForecast | None
    reason: str | None = None
    price: float | None = None  # of all hosts for an hour

    @property
    def cost(self) -> Estimate | None:
        """To finish the task, restarts and checkpoints included."""
        if self.forecast is None or self.price is None:
            return None
        wall, per_second = self.forecast.wall_seconds, self.price / 3600
        return Estimate(per_second * wall.expected, per_second * wall.low, per_second * wall.high)

    def record(self) -> dict[str, Any]:
        found, cost = self.forecast, self.cost
        if found is None:
            return {"strategy": self.strategy, "feasible": False, "reason": self.reason}
        return {
            "strategy": self.strategy,
            "feasible": True,
            "reason": None,
            "hosts": found.hosts,
            "ranks": found.ranks,
            "samples_per_second": found.samples_per_second.expected,
            "interval": [found.samples_per_second.low, found.samples_per_second.high],
            "step_ms": 1000 * found.step_seconds.expected,
            "communication_ms": 1000 * found.communication_seconds,
            "goodput": found.goodput,
            "checkpoint_interval_seconds": found.checkpoint_interval_seconds,
            "seconds": found.wall_seconds.expected,
            "seconds_interval": [found.wall_seconds.low, found.wall_seconds.high],
            "failures": found.failures,
            "cost": cost and cost.expected,
            "cost_interval": cost and [cost.low, cost.high],
        }


def on_fleet(
    fleet: Fleet, forecasts: Sequence[Forecast], rows: Sequence[Contender], found: Calibration, price: float | None
) -> list[FleetForecast]:
    """Every row that may run over hosts and is feasible on one of them with as many ranks as each has; `price` is that of a
    host for an hour."""
    result, of_all = [], None if price is None else price * fleet.hosts
    for one, row in zip(forecasts, rows, strict=True):
        if not one.feasible or one.step_ms is None or row.strategy is None or row.ranks != fleet.ranks_per_host:
            continue
        if not row.strategy.traits.hosts:
            result.append(FleetForecast(one.strategy, None, "it shares memory and cannot run over several hosts"))
            continue
        try:
            scaled = _scaled(fleet, one.step_ms, row.strategy.traits.lockstep, found)
            result.append(FleetForecast(one.strategy, scaled, price=of_all))
        except BadInput as hopeless:  # hosts that fail so often that nothing is ever finished
            result.append(FleetForecast(one.strategy, None, str(hopeless)))
    return result


def _scaled(fleet: Fleet, step_ms: float, synchronous: bool, found: Calibration) -> ScaleForecast:
    batch = found.samples_per_step
    return at_scale(
        step_ms / 1000,
        fleet.ranks_per_host,
        fleet.hosts,
        fleet.link,
        found.needs.gradients / fleet.ranks_per_host,
        synchronous,
        fleet.stragglers,
        fleet.failures,
        fleet.checkpoint_seconds,
        batch * fleet.hosts,
        found.job.total_steps * batch,
    )
