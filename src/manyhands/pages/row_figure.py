"""Figures with a named row per run, the first on top: bars and heatmaps, and the colours and patterns of phases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..record.run import PHASES
from .figure import MUTED, SURFACE, TEXT, Figure, figure, short

if TYPE_CHECKING:
    from .chart import Series

PATTERNS = dict(zip(PHASES, ("", "\\", "x", "", "", "", "/", "", "."), strict=True))
BAR = 0.62  # of a row
TEXT_LINE = 17  # pixels, with the space between the names of two rows
PATTERN = {"size": 6, "fgcolor": SURFACE, "fillmode": "overlay"}


class Row(NamedTuple):
    """The place of a run: its edges, where its name stands beside the axis, and where its drawing begins.

    On a narrow screen charts.js writes the name above the drawing, to save its width; where the run is hidden, it
    closes the gap between the edges.
    """

    item: Series
    start: float
    end: float
    top: float

    @property
    def middle(self) -> float:
        return (self.start + self.end) / 2


def even_rows(shown: Sequence[Series], bar: float = BAR) -> list[Row]:
    """A row of the same height for each."""
    return [Row(item, row - 0.5, row + 0.5, row - bar / 2) for row, item in enumerate(shown)]


def rows_figure(rows: Sequence[Row], unit: float, x: dict[str, Any], **layout: Any) -> Figure:
    """An empty chart with these rows, `unit` pixels to one, or more where a name needs them; names have no unit."""
    for row in rows:
        unit = max(unit, TEXT_LINE * (1 + row.item.tick.count("<br>")) / (row.end - row.start))
    y = {
        "title": "",
        "tickvals": [row.middle for row in rows],
        "ticktext": [row.item.tick for row in rows],
        "range": [rows[-1].end, rows[0].start],
        "showgrid": False,
        "tickfont": {"color": TEXT},
        "fixedrange": True,
    }
    places = [
        {"run": row.item.index, "name": row.item.safe, "start": row.start, "end": row.end, "top": row.top}
        for row in rows
    ]
    height = round(unit * (rows[-1].end - rows[0].start))
    return figure(height, x, y, meta={"rows": places}, **layout)


def heatmap(
    shown: Sequence[Series],
    columns: Sequence[str],
    cells: Sequence[Sequence[float | None]],
    across: str,
    unit: str,
    span: tuple[float, float] | None = None,
) -> Figure:
    """A line per run and a column per thing, each cell with its figure where there is room."""
    known = [value for line in cells for value in line if value is not None]
    low, high = span or (min(known), max(known))
    digits = ".1f" if len(columns) <= 12 and high - low < 20 else ".0f"
    x = {"title": f"{across}; cells: {unit}", "type": "category", "showgrid": False}
    fig = rows_figure(even_rows(shown, bar=0.6), 34, x, showlegend=False)
    bar = {"title": {"text": unit, "side": "right"}, "thickness": 10, "outlinewidth": 0, "tickfont": {"color": MUTED}}
    fig.add(
        "heatmap",
        z=[[None if value is None else short(value) for value in line] for line in cells],
        x=list(columns),
        y=list(range(len(shown))),
        zmin=short(low),
        zmax=short(high) if high > low else short(low) + 1,
        colorscale=[[0, "var(--scale-low)"], [1, "var(--scale-high)"]],
        colorbar=bar,
        showscale=len(columns) > 24,
        xgap=2,
        ygap=2,
        textfont={"color": TEXT},
        texttemplate=f"%{{z:{digits}}}" if len(columns) <= 24 else None,
        customdata=[[item.safe] * len(columns) for item in shown],
        hovertemplate=f"%{{x}}: %{{z:.1f}} ({unit.replace('%', '&#37;')})<extra>%{{customdata}}</extra>",
    )
    return fig


def add_bars(
    fig: Figure,
    rows: Sequence[float],
    lengths: Sequence[float],
    width: Any,
    marker: dict[str, Any],
    hover: str,
    **more: Any,
) -> None:
    """Lying bars, one for each of `rows`, with their text (if any) inside."""
    style = (
        {"textposition": "inside", "insidetextanchor": "start", "textfont": {"color": SURFACE}}
        if "text" in more
        else {}
    )
    shape = {"orientation": "h", "width": width, "marker": marker, "hovertemplate": hover}
    fig.add("bar", x=[short(length) for length in lengths], y=list(rows), **{**shape, **style, **more})


def phase_marker(phase: str) -> dict[str, Any]:
    """Fill of a phase: the same colour and pattern in every chart, edged so that neighbours stay apart."""
    edge = {"color": SURFACE, "width": 1}
    pattern = {**PATTERN, "shape": PATTERNS[phase], "solidity": 0.3}
    return {"color": f"var(--phase-{phase})", "pattern": pattern, "line": edge}
