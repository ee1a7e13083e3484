"""Figures as CSV files in the run's folder: steps.csv, epochs.csv, and figures.csv with everything that is one number."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .contract import About, Row, Session, Tracker
from .figures import EPOCHS, LIVE, STEPS, environment, numbers, texts

if TYPE_CHECKING:
    from ..run import Run


@dataclass
class Csv(Tracker):
    """`folder`: instead of the run's own."""

    name = "csv"
    needs_folder = True

    folder: str | os.PathLike[str] | None = None

    def open(self, about: About) -> Session:
        return _Files(about.place(self.folder), about.parameters)


class _Files(Session):
    def __init__(self, place: Path, parameters: Mapping[str, Any]):
        self._place, self._parameters = place, parameters
        self._headings: dict[str, list[str]] = {}  # of the files begun

    def log(self, kind: str, rows: Sequence[Row]) -> None:
        if kind == LIVE or not rows:
            return
        named = [{name.removeprefix("epoch/"): value for name, value in row.items()} for row in rows]
        begun = kind in self._headings
        headings = self._headings.setdefault(kind, list(named[0]))
        with (self._place / f"{kind}.csv").open("a" if begun else "w", newline="") as file:
            writer = csv.DictWriter(file, headings, extrasaction="ignore")
            if not begun:
                writer.writeheader()
            writer.writerows(named)

    def end(self, run: Run, page: str | None) -> None:
        """What the record knows takes the place of what was written on the way: it has the steps before a resume too."""
        if run.losses:
            _write(self._place / f"{STEPS}.csv", ["step", "loss"], _by_step(run))
        if run.epochs:
            headings = list(dict.fromkeys(name for entry in run.epochs for name in entry))
            _write(
                self._place / f"{EPOCHS}.csv",
                headings,
                ([entry.get(name) for name in headings] for entry in run.epochs),
            )
        every = {**self._parameters, **environment(run), **texts(run), **numbers(run)}
        _write(self._place / "figures.csv", ["name", "value"], every.items())

    def close(self, status: str) -> None:
        """No file is open."""


def _by_step(run: Run) -> Iterator[tuple[int, float | None]]:
    """The last step that each loss stands for, and the loss."""
    return ((min(place * run.steps_per_loss, run.steps), loss) for place, loss in enumerate(run.losses, start=1))


def _write(path: Path, headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(headings)
        writer.writerows(rows)
