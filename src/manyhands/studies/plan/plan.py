"""plan(): what every strategy would do with a task, before it is run, each figure with an interval."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...errors import BadInput
from ...record.conformal import calibrated
from ...record.cores import available_cores
from ...record.forecast import Forecast
from ...record.ledger import keep
from ...record.run import environment
from ...strategies.contract import Strategy
from ...strategies.table import TABLE
from ...task import Task
from ...training.settings import FitSettings
from ...world.devices import resolve_devices
from ..contenders import contenders
from .calibrate import Calibration, calibrate
from .forecasts import SIMULATED, TRIED, Forecaster, Place
from .link import Link
from .many_hosts import Fleet, FleetForecast, on_fleet
from .measured_link import link_of
from .score import matched
from .trials import anchors

FEWEST_SECONDS = 5.0
# Half the width of memory's 80 % interval, relative: eight of ten rows were off by less (docs/plan.md).
MEMORY_TRIED, MEMORY_SIMULATED = 0.02, 0.06
ON_HOSTS = "10gbit,50us"  # between hosts, where nobody says


@dataclass(frozen=True)
class Plan:
    """Forecasts, one per row; `best` is the fastest feasible one."""

    forecasts: list[Forecast]
    best: Forecast | None
    why: str
    calibration: Calibration
    fleet: list[FleetForecast]  # where many hosts were asked about
    device: str  # the kind, such as "cpu"

    @property
    def best_of_fleet(self) -> FleetForecast | None:
        """The first to finish the task on many hosts."""
        done = [(one.forecast.wall_seconds.expected, one) for one in self.fleet if one.forecast is not None]
        return min(done, key=lambda pair: pair[0], default=(0.0, None))[1]

    def record(self) -> dict[str, Any]:
        return {
            "forecasts": [one.record() for one in self.forecasts],
            "best": None if self.best is None else {**self.best.record(), "why": self.why},
            "at_scale": [one.record() for one in self.fleet],
            "best_at_scale": None if self.best_of_fleet is None else self.best_of_fleet.strategy,
            "calibration": {
                "seconds": self.calibration.seconds,
                "cores": self.calibration.cores,
                "crowding": self.calibration.crowding,
                "others_cores": self.calibration.others_cores,
                "skipped": self.calibration.skipped,
                "enough_seconds": self.calibration.enough_seconds,
            },
        }


def plan(
    task: Task,
    strategies: Sequence[str | Strategy] | None = None,
    *,
    ranks: int | Iterable[int] | None = None,
    hosts: int = 1,
    link: str | Link | None = None,
    cores: int | None = None,
    memory: float | None = None,
    price: float | None = None,
    budget: float = 60.0,
    trials: bool = True,
    threads: int | None = None,
    fleet: Fleet | None = None,
    runs: str | os.PathLike[str] | None = None,
    say: Callable[[str], None] = lambda text: None,
    **keywords: Any,
) -> Plan:
    """Forecast `task` under each strategy and number of ranks from a short calibration on this machine.

    Args:
        task: What would be trained.
        strategies: Names, names with options, or strategy objects. Default: all of them.
        ranks: A number, or several such as `[1, 2, 4, 8]`.
        hosts: Over how many hosts like this one the ranks would be spread.
        link: What connects hosts: bandwidth and latency such as "10gbit,50us", or the file of a measured link.
        cores: Cores of each host, where they are not those of this one.
        memory: Bytes that a rank may take; rows that need more are not feasible.
        price: Of a host for an hour; adds the cost to finish the task.
        budget: Seconds that the calibration may take.
        trials: Try rows with few ranks for a moment. Without, all of them are simulated.
        threads: Threads of each rank. Default: cores divided by the largest number of ranks.
        fleet: Many hosts with failures and stragglers, instead of `ranks` and `hosts`: forecasts are made for one of them,
            and from those for all.
        runs: A folder of runs whose ledger tells how far earlier forecasts were off: from 20 on, intervals follow from it.
        say: Is told what is being measured.
        **keywords: All other keywords of `fit`.

    Returns:
        The forecasts and the best choice among them.
    """
    if not budget >= FEWEST_SECONDS:
        raise BadInput(f"budget must be at least {FEWEST_SECONDS:g} seconds (found {budget:g})")
    for name, value in (("hosts", hosts), ("cores", cores)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise BadInput(f"{name} must be a whole number of at least 1 (found {value!r})")
    if price is not None and not 0 <= price < math.inf:
        raise BadInput(f"price must be 0 or more (found {price!r})")
    if memory is not None and not memory > 0:
        raise BadInput(f"memory must be above 0 (found {memory!r})")
    between = link if isinstance(link, Link) else link_of(link or ON_HOSTS)
    settings = FitSettings.of(progress=False, **keywords)
    device = ",".join(sorted({item.type for item in resolve_devices(settings.device, 1)}))
    if fleet is not None:
        if ranks is not None or hosts != 1:
            raise BadInput(f"a fleet has its own hosts and ranks (found ranks={ranks}, hosts={hosts}); leave them out")
        ranks = fleet.ranks_per_host
    rows = contenders(list(strategies) if strategies else list(TABLE), ranks, threads)
    known = [*rows, *(anchors(rows) if trials else ())]
    found = calibrate(task, known, settings, budget, say, trials)
    place = Place(hosts, between if hosts > 1 else None, cores if cores != available_cores() else None, memory)
    forecaster = Forecaster(found, known, place)
    earned = _earned(runs)
    forecasts = [_finished(earned(forecaster.forecast(row)), found, hosts, price) for row in rows]
    best = max((one for one in forecasts if one.feasible), key=_speed, default=None)
    many = on_fleet(fleet, forecasts, rows, found, price) if fleet else []
    return Plan(forecasts, best, _why(best, forecasts), found, many, device)


def _speed(one: Forecast) -> float:
    return one.samples_per_second or 0.0


def _earned(folder: str | os.PathLike[str] | None) -> Callable[[Forecast], Forecast]:
    """Intervals that earlier forecasts of the same basis have earned take the place of reckoned ones."""
    scores = matched(folder)[0] if folder is not None and Path(folder).is_dir() else []
    ratios = {basis: calibrated(scores, basis) for basis in (TRIED, SIMULATED)}

    def change(one: Forecast) -> Forecast:
        known, speed = ratios.get(one.basis or ""), one.samples_per_second
        return one if known is None or speed is None else replace(one, interval=(speed * known[0], speed * known[1]))

    return change


def kept(found: Plan, folder: str | os.PathLike[str]) -> Path:
    """Keep the forecasts in the ledger of a folder of runs, for later runs to score them."""
    job = found.calibration.job
    return keep(
        folder,
        found.forecasts,
        task=job.task.name or type(job.model).__name__,
        batch_size=job.task.batch_size,
        accumulate=job.settings.accumulate,
        precision=job.settings.precision,
        device=found.device,
        environment=environment(),
    )


def _finished(one: Forecast, found: Calibration, hosts: int, price: float | None) -> Forecast:
    """With the time, and the cost, to finish the task: start, steps and evaluations."""
    if not one.feasible or one.samples_per_second is None or one.interval is None:
        return one
    job = found.job
    samples, per_step = job.total_steps * found.samples_per_step, 1000 * found.samples_per_step
    beside = found.startup_seconds + found.prepare_seconds.get(one.strategy.partition(":")[0], 0.0)
    if job.test is not None and (parts := found.parts.get(min(found.parts))):
        most = max(parts)
        beside += job.epochs * len(job.test) * parts[most]["forward"] / most
    low, high = (beside + samples / speed for speed in reversed(one.interval))
    half = MEMORY_TRIED if one.basis == TRIED else MEMORY_SIMULATED
    seconds, memory = beside + samples / one.samples_per_second, one.memory_bytes
    per_second = None if price is None else price * hosts / 3600
    return replace(
        one,
        step_ms_interval=(per_step / one.interval[1], per_step / one.interval[0]),
        memory_interval=None if memory is None else (memory * (1 - half), memory * (1 + half)),
        seconds=seconds,
        seconds_interval=(low, high),
        cost=None if per_second is None else per_second * seconds,
        cost_interval=None if per_second is None else (per_second * low, per_second * high),
    )


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
