"""Which forecast a run is held against: the latest one made before it started, for the same job on the same machine."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from .ledger import MACHINE, Entry, moment
from .run import Run

Key = tuple[Hashable, ...]


class Forecasts:
    """Entries of a ledger, found by the run they were made for."""

    def __init__(self, entries: Iterable[Entry]):
        self._found: dict[Key, list[tuple[datetime, Entry]]] = {}
        for entry in entries:
            if (made := moment(entry.made)) is not None:
                self._found.setdefault(_key_of_entry(entry), []).append((made, entry))
        for same in self._found.values():
            same.sort(key=lambda item: item[0])  # stable: of two made in one second the later line counts

    def before(self, run: Run) -> Entry | None:
        """The latest forecast of this run, feasible or not.

        Both times are in whole seconds, so a forecast made within the second in which the run started counts.
        """
        started = moment(run.started)
        if started is None or not all((run.environment or {}).get(name) for name in ("cores", "torch")):
            return None  # unknown machines are not the same machine
        for made, entry in reversed(self._found.get(_key_of_run(run), [])):
            threads = entry.forecast.threads
            if made <= started and (threads is None or run.threads is None or threads == run.threads):
                return entry
        return None


def ledger_folders(run: Run, folder: str | os.PathLike[str]) -> list[Path]:
    """Where a run in this folder finds its ledger, nearest first: in the parent of the folder. Rows of a comparison have
    a folder of their own between them and the runs folder."""
    above = Path(os.path.abspath(folder)).parents
    return list(above[: 2 if run.comparison is not None else 1])


def _key_of_entry(entry: Entry) -> Key:
    forecast = entry.forecast
    return (
        entry.task,
        _label(forecast.strategy),
        forecast.ranks,
        forecast.hosts,
        forecast.batch_size or entry.batch_size,
        entry.accumulate,
        entry.precision,
        _kinds(entry.device.split(",")),
        _machine(entry.environment),
    )


def _key_of_run(run: Run) -> Key:
    hosts = {rank.get("host") for rank in run.per_rank} - {None}
    return (
        run.task,
        _label(run.label),
        run.ranks,
        max(1, len(hosts)),
        run.batch_size,
        run.accumulate,
        run.precision,
        _kinds(run.devices or [run.device or ""]),
        _machine(run.environment),
    )


def _label(text: str) -> Key:
    """A strategy with its options, in whatever order those are written."""
    name, _, options = text.partition(":")
    return name, *sorted(options.split(","))


def _kinds(devices: Iterable[str]) -> frozenset[str]:
    return frozenset(device.strip().split(":")[0] for device in devices)


def _machine(environment: Mapping[str, Any]) -> Key:
    return tuple(environment.get(name) for name in MACHINE)
