"""Runs: the result of a comparison, a list that knows its table, its conclusion and its charts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, SupportsIndex, overload

from ..pages import columns, comparison_rows, conclusion
from ..record.presentation import Presented
from ..record.run import Run
from ..record.untrusted import plain


class Table(list[dict[str, Any]]):
    """Rows as plain values by name, for programs: `pandas.DataFrame(runs.table())`. It prints as the command line does."""

    def __str__(self) -> str:
        target = 0.0 if any(row["seconds_to_target"] is not None for row in self) else None
        shown = [column for column in columns(self, target) if column.key != "note"]
        cells = [[column.heading for column in shown], *([column.text(row) for column in shown] for row in self)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        sides = [">" if column.numeric else "<" for column in shown]
        lines = [
            "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)).rstrip()
            for row in cells
        ]
        notes = [f"{row['label']}: {row['note']}" for row in self if row["note"]]
        return "\n".join(map(plain, [*lines, *notes]))

    __repr__ = __str__


class Runs(list[Run], Presented):
    """Runs beside each other, one per row; a slice of them is such a list too."""

    def __init__(self, runs: Iterable[Run] = ()):
        super().__init__(runs)
        self.interrupted = False  # by Ctrl-C: the rows hold what was finished

    def table(self, target: float | None = None) -> Table:
        """One row per run as in the report; `target`, an accuracy of 0..1, adds the seconds to reach it."""
        return Table(comparison_rows(self, target))

    @property
    def conclusion(self) -> str:
        """What follows from the figures, in a sentence or two."""
        return plain(conclusion(self))

    def _presented(self) -> Sequence[Run]:
        return self

    def __repr__(self) -> str:
        return f"{self.table()}\n\n{self.conclusion}" if self else "Runs([])"

    @overload
    def __getitem__(self, place: SupportsIndex, /) -> Run: ...

    @overload
    def __getitem__(self, place: slice, /) -> Runs: ...

    def __getitem__(self, place: SupportsIndex | slice, /) -> Run | Runs:
        return Runs(super().__getitem__(place)) if isinstance(place, slice) else super().__getitem__(place)
