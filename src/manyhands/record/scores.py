"""Scores: what was forecast against what was measured, one per finished run that had a forecast."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .forecast import Forecast
from .ledger import Entry
from .matching import Forecasts
from .run import Run, finite

SLOWEST = 1e-9  # samples per second; below that nothing was measured, and ratios would overflow


@dataclass(frozen=True)
class Score:
    """A forecast and the run it was held against."""

    forecast: Forecast
    made: str
    run: Run
    forecast_speed: float  # samples per second
    measured: float  # the same, as the run measured it
    error: float  # signed: forecast / measured - 1
    held: bool | None  # whether the interval contains what was measured; None without an interval
    memory_error: float | None  # signed, of the rank with the largest peak; None where either is not known
    basis: str | None

    def record(self) -> dict[str, Any]:
        """As plain JSON-able data."""
        run, forecast = self.run, self.forecast
        record: dict[str, Any] = finite(
            {
                "task": run.task,
                "strategy": run.label,
                "ranks": run.ranks,
                "threads": run.threads,
                "forecast": self.forecast_speed,
                "interval": forecast.interval,
                "measured": self.measured,
                "error": self.error,
                "held": self.held,
                "memory_bytes": forecast.memory_bytes,
                "peak_memory_bytes": peak_memory(run),
                "memory_error": self.memory_error,
                "basis": self.basis,
                "made": self.made,
                "started": run.started,
                "comparison": run.comparison,
                "folder": None if run.folder is None else str(run.folder),
            }
        )
        return record


def scored(entries: Iterable[Entry], runs: Iterable[Run]) -> list[Score]:
    """One score for each finished run with a speed whose latest earlier forecast has one too."""
    known = Forecasts(entries)
    found = (score(entry, run) for run in runs if (entry := known.before(run)) is not None)
    return [one for one in found if one is not None]


def score(entry: Entry, run: Run) -> Score | None:
    """A run held against its forecast; None where one of them has no figure."""
    forecast, measured = entry.forecast, run.samples_per_second
    speed = expected_speed(forecast)
    if run.status != "done" or speed is None or measured is None or measured <= SLOWEST:
        return None
    held = None if forecast.interval is None else forecast.interval[0] <= measured <= forecast.interval[1]
    peak, memory = peak_memory(run), forecast.memory_bytes
    memory_error = memory / peak - 1 if memory and peak and memory > 0 else None
    return Score(forecast, entry.made, run, speed, measured, speed / measured - 1, held, memory_error, forecast.basis)


def expected_speed(forecast: Forecast) -> float | None:
    """Samples per second, where the forecast is that the job can run."""
    speed = forecast.samples_per_second
    return speed if forecast.feasible and speed is not None and speed > SLOWEST else None


def peak_memory(run: Run) -> float | None:
    """Of the rank that held most, in bytes."""
    found = [rank.get("peak_memory_bytes") for rank in run.per_rank]
    return max((value for value in found if value is not None and value >= 1), default=None)
