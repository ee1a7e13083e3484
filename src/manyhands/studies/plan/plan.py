"""plan(): what every strategy would do with a task, before it is run, each figure with an interval."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...errors import BadInput
from ...record.cores import available_cores
from ...record.forecast import Forecast
from ...strategies.contract import Strategy
from ...strategies.table import TABLE
from ...task import Task
from ...training.settings import FitSettings
from ..contenders import Contender, contenders
from .calibrate import Calibration, calibrate
from .failures import Failures
from .forecasts import Forecaster, Place
from .link import Link
from .many_hosts import Fleet, FleetForecast, on_fleet
from .stragglers import Stragglers

FEWEST_SECONDS = 5.0
ON_HOSTS = "10gbit,50us"  # between hosts, where nobody says


@dataclass(frozen=True)
class Plan:
    """Forecasts, one per row; `best` is the fastest feasible one."""

    forecasts: list[Forecast]
    best: Forecast | None
    why: str
    calibration: Calibration
    fleet: list[FleetForecast]  # where many hosts were asked about

    def record(self) -> dict[str, Any]:
        return {
            "forecasts": [one.record() for one in self.forecasts],
            "best": None if self.best is None else {**self.best.record(), "why": self.why},
            "at_scale": [one.record() for one in self.fleet],
            "calibration": {
                "seconds": self.calibration.seconds,
                "cores": self.calibration.cores,
                "crowding": self.calibration.crowding,
                "skipped": self.calibration.skipped,
            },
        }


def plan(
    task: Task,
    strategies: Sequence[str | Strategy] | None = None,
    *,
    ranks: int | Iterable[int] | None = None,
    hosts: int = 1,
    link: str | Link | None = None,
    ranks_per_host: int | None = None,
    mean_seconds_between_failures: float | None = None,
    restart_seconds: float = 60.0,
    checkpoint_seconds: float = 10.0,
    stragglers: float = 0.0,
    cores: int | None = None,
    memory: float | None = None,
    price: float | None = None,
    budget: float = 60.0,
    trials: bool = True,
    threads: int | None = None,
    say: Callable[[str], None] = lambda text: None,
    **keywords: Any,
) -> Plan:
    """Forecast `task` under each strategy and number of ranks from a short calibration on this machine.

    Args:
        task: What would be trained.
        strategies: Names, names with options, or strategy objects. Default: all of them.
        ranks: A number, or several such as `[1, 2, 4, 8]`.
        hosts: Over how many hosts like this one the ranks would be spread.
        link: What connects hosts: bandwidth and latency such as "10gbit,50us".
        ranks_per_host: For many hosts: every one has so many ranks and takes the task's batch; forecasts are then made for
            one host, and from those for all of them, with failures and stragglers.
        mean_seconds_between_failures: Of one host, there. Default: hosts never fail.
        restart_seconds: What a failure costs there, beside the work since the last checkpoint.
        checkpoint_seconds: What a checkpoint costs there.
        stragglers: How much the step times of ranks vary there: standard deviation over mean.
        cores: Cores of each host, where they are not those of this one.
        memory: Bytes that a rank may take; rows that need more are not feasible.
        price: Of a host for an hour; adds the cost to finish the task.
        budget: Seconds that the calibration may take.
        trials: Try rows with few ranks for a moment. Without, all of them are simulated.
        threads: Threads of each rank. Default: cores divided by the largest number of ranks.
        say: Is told what is being measured.
        **keywords: All other keywords of `fit`.

    Returns:
        The forecasts and the best choice among them.
    """
    if not budget >= FEWEST_SECONDS:
        raise BadInput(f"budget must be at least {FEWEST_SECONDS:g} seconds (found {budget:g})")
    for name, value in (("hosts", hosts), ("cores", cores), ("ranks_per_host", ranks_per_host)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise BadInput(f"{name} must be a whole number of at least 1 (found {value!r})")
    if price is not None and not price >= 0:
        raise BadInput(f"price must be 0 or more (found {price!r})")
    if memory is not None and not memory > 0:
        raise BadInput(f"memory must be above 0 (found {memory!r})")
    between = Link.parse(link or ON_HOSTS) if link is None or isinstance(link, str) else link
    settings = FitSettings.of(progress=False, **keywords)
    fleet = None
    if ranks_per_host is not None:
        if ranks is not None:
            raise BadInput(
                f"give ranks, or hosts and ranks_per_host (found ranks={ranks} and ranks_per_host={ranks_per_host})"
            )
        failing = Failures(mean_seconds_between_failures or math.inf, restart_seconds)
        fleet = Fleet(hosts, ranks_per_host, between, failing, Stragglers(stragglers), checkpoint_seconds)
        ranks, hosts = ranks_per_host, 1
    rows = contenders(list(strategies) if strategies else list(TABLE), ranks, threads)
    found = calibrate(task, rows, settings, budget, say, trials)
    place = Place(hosts, between if hosts > 1 else None, cores if cores != available_cores() else None, memory)
    forecaster = Forecaster(found, rows, place)
    forecasts = [_finished(forecaster.forecast(row), row, found, hosts, price) for row in rows]
    best = max((one for one in forecasts if one.feasible), key=_speed, default=None)
    return Plan(forecasts, best, _why(best, forecasts), found, on_fleet(fleet, forecasts, rows, found) if fleet else [])


def _speed(one: Forecast) -> float:
    return one.samples_per_second or 0.0


def _finished(one: Forecast, row: Contender, found: Calibration, hosts: int, price: float | None) -> Forecast:
    """With the time, and the cost, to finish the task: start, steps and evaluations."""
    if not one.feasible or one.samples_per_second is None or one.interval is None:
        return one
    job = found.job
    samples = job.total_steps * job.task.batch_size
    beside = found.startup_seconds
    if job.test is not None and (parts := found.parts.get(min(found.parts))):
        most = max(parts)
        beside += job.epochs * len(job.test) * parts[most]["forward"] / most
    low, high = one.interval
    seconds = beside + samples / one.samples_per_second
    cost = None if price is None else price * hosts * seconds / 3600
    return replace(one, seconds=seconds, seconds_interval=(beside + samples / high, beside + samples / low), cost=cost)


def _why(best: Forecast | None, forecasts: Sequence[Forecast]) -> str:
    """In a sentence: by how much, and whether the intervals tell it from the next."""
    if best is None:
        return "No strategy is feasible."
    others = [one for one in forecasts if one.feasible and one is not best]
    if not others:
        return "It is the only feasible choice."
    second = max(others, key=_speed)
    assert best.interval is not None
    assert second.interval is not None
    ratio = _speed(best) / max(1e-9, _speed(second))
    name = label(second)
    if best.interval[0] > second.interval[1]:
        return f"It is forecast {ratio:.2f} times as fast as {name}, the next."
    return f"It is forecast {ratio:.2f} times as fast as {name}, the next; the intervals overlap, so that is no sure choice."


def label(one: Forecast) -> str:
    """As a comparison calls its rows."""
    if one.strategy == "single":
        return f"single with {one.threads} thread{'s' * (one.threads != 1)}"
    return f"{one.strategy} on {one.ranks} rank{'s' * (one.ranks != 1)}"
