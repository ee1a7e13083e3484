"""The finished table of an experiment: measured figures, one per seed, beside the published ones."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...record.run import Run
from ..intervals import Interval, interval
from .experiment import Column, Experiment, Line, Part, Scale

Figures = dict[str, list[float]]  # by the keys of columns: one figure per seed
Seeds = Mapping[str, Sequence[int]]  # by the keys of columns: the seeds of those figures


@dataclass(frozen=True)
class Row:
    """A part with its runs, one per seed; `problem` is why there are fewer."""

    part: Part
    runs: Sequence[Run]
    figures: Figures
    problem: str | None = None
    failed: bool = False  # rather than refused, or diverged
    seeds: Seeds = field(default_factory=dict)  # where it is not given, they are 0, 1, 2, ...

    @property
    def label(self) -> str:
        return self.part.label

    def figure(self, key: str) -> float | None:
        """The median over the seeds; None where it was not measured."""
        values = self.figures.get(key)
        return statistics.median(values) if values else None

    def by_seed(self, key: str) -> dict[int, float]:
        values = self.figures.get(key, [])
        return dict(zip(self.seeds.get(key, range(len(values))), values, strict=True))

    def span(self, key: str) -> tuple[float, float] | None:
        values = self.figures.get(key)
        return (min(values), max(values)) if values else None


class Table:
    """Rows by label. `table["2 workers"].figure("seconds")`, `table.ratio("seconds", "0 workers", "2 workers")`."""

    def __init__(self, experiment: Experiment, scale: Scale, rows: Sequence[Row]):
        self.experiment, self.scale, self.rows = experiment, scale, list(rows)

    def __getitem__(self, label: str) -> Row:
        return next(row for row in self.rows if row.label == label)

    def __contains__(self, label: str) -> bool:
        return any(row.label == label for row in self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def figure(self, label: str, key: str) -> float | None:
        """The median over the seeds; None where there is no such row, or no figure in it."""
        return self[label].figure(key) if label in self else None

    def measured(self, key: str) -> list[Row]:
        """The rows that have this figure."""
        return [row for row in self.rows if row.figures.get(key)]

    def ratio(self, key: str, above: str, below: str) -> Interval | None:
        """How many times larger the figure of one row is than that of another: seed by seed, the median and both ends."""
        if above not in self or below not in self:
            return None
        upper, lower = self[above].by_seed(key), self[below].by_seed(key)
        ratios = [upper[seed] / lower[seed] for seed in upper if lower.get(seed)]
        return interval(ratios) if ratios else None


def read_figures(
    columns: Sequence[Column], runs: Mapping[int, Run], beside: Mapping[int, Mapping[str, Run]]
) -> tuple[Figures, Seeds]:
    """Every column of every run, and which seeds have it; `beside` holds, by seed, the runs of all parts."""
    read = {
        column.key: {seed: value for seed, run in runs.items() if (value := column.read(run, beside[seed])) is not None}
        for column in columns
    }
    return {key: list(map(float, by.values())) for key, by in read.items()}, {key: list(by) for key, by in read.items()}


def by_epoch(table: Table, key: str = "test_accuracy", scale: float = 100.0) -> list[Line]:
    """A line per row of a figure that every epoch of a run has: the median over seeds, and both ends."""
    lines = []
    for row in table:
        points = []
        for entries in zip(*(run.epochs for run in row.runs), strict=False):
            values = [scale * entry[key] for entry in entries if entry.get(key) is not None]
            if values:
                points.append((float(entries[0]["epoch"]), statistics.median(values), min(values), max(values)))
        if points:
            lines.append(Line(row.label, points))
    return lines


def over(rows: Sequence[tuple[float, Row]], key: str, name: str, published: bool = False) -> Line:
    """A line of one figure against an x per row: `over([(1, row), (2, other)], "speedup", "free")`."""
    points = []
    for x, row in rows:
        middle, span = row.figure(key), row.span(key)
        if published:
            middle = row.part.published.get(key)
            span = None if middle is None else (middle, middle)
        if middle is not None and span is not None:
            points.append((float(x), middle, *span))
    return Line(f"{name} (published)" if published else name, points, published)


def shown(value: float | None, form: str) -> str:
    """A figure in the form of its column."""
    return "-" if value is None else format(value, form)


def as_data(row: Row) -> dict[str, Any]:
    """A row as the page, the JSON document and docs/lab.md read it."""
    return {
        "row": row.label,
        "published": dict(row.part.published),
        "measured": {
            key: {"median": row.figure(key), "lowest": min(values), "highest": max(values), "seeds": len(values)}
            for key, values in row.figures.items()
            if values
        },
        "problem": row.problem,
        "failed": row.failed,
    }


def runs_of(row: Row) -> dict[str, Any]:
    """What a row was trained with, and where its runs are, from the experiment's folder."""
    run = row.runs[0]
    return {
        "row": row.label,
        "task": run.task,
        "strategy": run.label,
        "ranks": run.ranks,
        "batch_size": run.batch_size,
        "epochs": len(run.epochs or []),
        "folders": ["/".join(one.folder.parts[-2:]) for one in row.runs if one.folder is not None],
    }
