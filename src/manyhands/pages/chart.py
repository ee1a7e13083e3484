"""What every chart shares: how it is built from runs, and how a run looks in it.

No chart tells things apart by colour alone: lines differ in dash and marker too, phases in pattern.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, TypeVar

from ..record.run import Run
from .comparing import name_lines, names
from .figure import Figure
from .scaling import family

COLOURS = 8  # --series-1 .. --series-8 in page.css
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "cross", "star", "triangle-down")
NAME_WIDTH, TITLE_WIDTH = 22, 36  # letters of a line, where names and titles can be broken


@dataclass(frozen=True)
class Series:
    """A run as the charts show it: the same place, name, colour, dash and marker everywhere."""

    index: int
    run: Run
    name: str
    colour: str
    dash: str
    symbol: str

    @property
    def safe(self) -> str:
        """The name as chart text, where markup has a meaning."""
        return escape(self.name)

    @property
    def tick(self) -> str:
        """The name in lines short enough to stand beside an axis or in a legend."""
        return "<br>".join(escape(line) for line in name_lines(self.name, NAME_WIDTH))

    @property
    def fill(self) -> str:
        """The colour of a bar that stands for the whole run: grey for one process."""
        return "var(--baseline)" if self.run.strategy == "single" else "var(--accent)"


def series(runs: Sequence[Run]) -> list[Series]:
    """Rows of one strategy with several numbers of ranks share its colour and differ in dash and marker."""
    called = [family(run) for run in runs]
    grouped = any(called.count(name) > 1 for name in called if name != "single")
    strategies = list(dict.fromkeys(called))
    found = []
    for index, (run, name) in enumerate(zip(runs, names(runs), strict=True)):
        hue, place = (
            (strategies.index(called[index]), called[:index].count(called[index])) if grouped else (index, index)
        )
        look = DASHES[place % len(DASHES)], SYMBOLS[place % len(SYMBOLS)]
        found.append(Series(index, run, name, f"var(--series-{hue % COLOURS + 1})", *look))
    return found


TableRow = tuple[int | None, Sequence[str]]  # the run it is about, if it is about one, and its cells


@dataclass(frozen=True)
class Drawing:
    """A figure, what it shows in words, and the same as a table."""

    figure: Figure
    caption: str
    headings: Sequence[str]
    rows: Sequence[TableRow]
    title: str | None = None  # where it differs from that of the chart


@dataclass(frozen=True)
class Chart:
    """A chart on the page; without a drawing, the reason why there is nothing to draw."""

    id: str
    title: str
    missing: str
    drawing: Drawing | None = None
    half: bool = False  # may share a line with another chart

    def __post_init__(self) -> None:
        if self.drawing is not None:
            lines = name_lines(self.title, TITLE_WIDTH)
            layout = self.drawing.figure.layout
            layout["margin"]["t"] = 30 + 18 * len(lines)
            layout["title"] = {
                "text": "<b>" + "<br>".join(map(escape, lines)) + "</b>",
                "x": 0,
                "y": 1,
                "yanchor": "top",
                "font": {"size": 15},
                "pad": {"t": 2 + 18 * (len(lines) - 1)},  # the anchor is that of the last line
            }

    @property
    def runs(self) -> set[int]:
        """The runs that are in it, by their place."""
        return {run for run, _ in self.drawing.rows if run is not None} if self.drawing else set()


def chart_data(charts: Iterable[Chart]) -> list[dict[str, Any]]:
    """What charts.js draws, as plain values: `id`, `data` and `layout` of every chart that has a drawing."""
    return [
        {"id": chart.id, "data": chart.drawing.figure.data, "layout": chart.drawing.figure.layout}
        for chart in charts
        if chart.drawing is not None
    ]


Value = TypeVar("Value")


def chart(
    id: str, title: str, read: Callable[[Run], Value | None], missing: str, half: bool = False
) -> Callable[[Callable[[list[tuple[Series, Value]]], Drawing | None]], Callable[[Sequence[Series]], Chart]]:
    """Make a chart out of a function that draws the runs from which `read` gets something."""

    def wrap(draw: Callable[[list[tuple[Series, Value]]], Drawing | None]) -> Callable[[Sequence[Series]], Chart]:
        def build(shown: Sequence[Series]) -> Chart:
            found = [(item, value) for item in shown if (value := read(item.run))]
            drawing = draw(found) if found else None
            return Chart(id, (drawing and drawing.title) or title, missing, drawing, half)

        return build

    return wrap
