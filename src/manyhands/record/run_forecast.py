"""A run learns what was forecast of it, from the ledger of its runs folder, when it is kept there."""

from __future__ import annotations

import contextlib
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from .ledger import LEDGER_FILE, Entry, read
from .matching import Forecasts, ledger_folders
from .run import Run
from .scores import expected_speed


def learn_forecast(run: Run, folder: str | os.PathLike[str]) -> None:
    """Give a run that is about to be kept in `folder` its forecast. Without a ledger that is one look at a folder, and
    nothing that is wrong with a ledger is a reason to lose a run."""
    with contextlib.suppress(Exception):
        for place in ledger_folders(run, folder):
            with contextlib.suppress(Exception):
                known = os.stat(place / LEDGER_FILE)
                entry = _forecasts(place, (known.st_mtime_ns, known.st_size)).before(run)
                if entry is None:
                    continue
                run.forecast = _told(entry)
                return


@lru_cache(maxsize=2)
def _forecasts(place: Path, changed: tuple[int, int]) -> Forecasts:
    """A large ledger takes a while to read, and every row of a comparison asks for the same two."""
    return Forecasts(read(place))


def _told(entry: Entry) -> dict[str, Any] | None:
    forecast, speed = entry.forecast, expected_speed(entry.forecast)
    if speed is None:
        return None
    return {
        "samples_per_second": speed,
        "interval": None if forecast.interval is None else list(forecast.interval),
        "memory_bytes": forecast.memory_bytes,
        "made": entry.made,
        "basis": forecast.basis,
    }
