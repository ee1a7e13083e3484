"""Forecasts and runs made by hand, for the tests of the ledger and of its scores."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from manyhands.record.forecast import Forecast
from manyhands.record.ledger import Entry, keep
from manyhands.record.run import Run

HERE: dict[str, Any] = {
    "torch": "2.13.0",
    "python": "3.11.2",
    "cpu": "A processor",
    "gpu": None,
    "cores": 2,
    "system": "Linux 6.1",
}
JOB: dict[str, Any] = {
    "task": "glyphs",
    "batch_size": 128,
    "accumulate": 1,
    "precision": "fp32",
    "device": "cpu",
    "environment": HERE,
}
START = datetime(2026, 3, 2, 10, 0, 0, tzinfo=UTC)


def at(minutes: float) -> datetime:
    return START + timedelta(minutes=minutes)


def forecast(strategy: str = "ddp", speed: float | None = 1000.0, **fields: Any) -> Forecast:
    """Two ranks, an interval of ten percent, simulated."""
    known: dict[str, Any] = {"ranks": 1 if strategy == "single" else 2, "basis": "simulated"}
    if speed is not None:
        known |= {"samples_per_second": speed, "interval": (0.9 * speed, 1.1 * speed)}
    return Forecast(**{"strategy": strategy, **known, **fields})


def entry(made: Forecast | None = None, when: float = -1, **changes: Any) -> Entry:
    """One minute before the run unless told otherwise."""
    return Entry(made or forecast(), at(when).isoformat(timespec="seconds"), **{**JOB, **changes})


def kept(folder: Path, *forecasts: Forecast, when: float = -1, **changes: Any) -> Path:
    return keep(folder, forecasts, made=at(when), **{**JOB, **changes})


def run(strategy: str = "ddp", speed: float | None = 1000.0, **fields: Any) -> Run:
    """As a fit leaves it, started at START."""
    known: dict[str, Any] = {
        "task": "glyphs", "batch_size": 128, "threads": 1, "device": "cpu", "environment": HERE,
        "ranks": 1 if strategy == "single" else 2, "samples_per_second": speed, "started": at(0).isoformat(),
    }  # fmt: skip
    return Run(**{"strategy": strategy, **known, **fields})


def comparison(name: str, folder: Path | None = None, **speeds: float) -> list[Run]:
    """Rows of one comparison, with rounds within one percent of their speeds."""
    rows = [
        run(strategy, speed, comparison=name, rounds=[0.99 * speed, speed, 1.01 * speed])
        for strategy, speed in speeds.items()
    ]
    for row in rows if folder is not None else ():
        row.save(folder / name / row.strategy)  # type: ignore[operator]
    return rows
