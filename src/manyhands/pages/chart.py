"""What every chart shares: how it is built from runs, its frame, its axes and its colours.

Colours are written as CSS variables (`var(--series-1)`): the page's style sheet is the only place that knows
them, in light and in dark, and page.js puts them in when a chart is drawn. No chart tells things apart by
colour alone: lines differ in dash and marker too, phases in pattern.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, TypeVar

import plotly.graph_objects as go

from ..record.run import PHASES, Run
from .comparing import name_lines, names

COLOURS = 8  # --series-1 .. --series-8 in page.css
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "cross", "star", "triangle-down")
PATTERNS = dict(zip(PHASES, ("", "\\", "x", "", "", "", "/", "", "."), strict=True))
TEXT, MUTED, GRID, SURFACE = "var(--text)", "var(--muted)", "var(--grid)", "var(--surface)"
NAMED = "<extra>%{fullData.name}</extra>"  # at the end of what a mark says when pointed at: whose it is

LEGEND = {  # below the plot, in columns of equal width: page.js makes the chart taller by their lines
    "orientation": "h",
    "xref": "container",
    "yref": "container",
    "yanchor": "bottom",
    "y": 0,
    "x": 0,
    "traceorder": "normal",
    "entrywidthmode": "pixels",
    "entrywidth": 115,
    "font": {"color": TEXT},
}
NARROW_LEGEND = {**LEGEND, "entrywidth": 90}  # for the names of phases


@dataclass(frozen=True)
class Series:
    """A run as the charts show it: the same name, colour, dash and marker everywhere."""

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
        """The name in lines short enough to stand beside an axis."""
        return "<br>".join(escape(line) for line in name_lines(self.name))

    @property
    def fill(self) -> str:
        """The colour of a bar that stands for the whole run: grey for one process."""
        return "var(--baseline)" if self.run.strategy == "single" else "var(--accent)"


def series(runs: Sequence[Run]) -> list[Series]:
    return [
        Series(
            run,
            name,
            f"var(--series-{index % COLOURS + 1})",
            DASHES[index % len(DASHES)],
            SYMBOLS[index % len(SYMBOLS)],
        )
        for index, (run, name) in enumerate(zip(runs, names(runs), strict=True))
    ]


@dataclass(frozen=True)
class Drawing:
    """A figure, what it shows in words, and the same as a table."""

    figure: go.Figure
    caption: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
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
            lines = name_lines(self.title, 36)
            layout = self.drawing.figure.layout
            layout.margin.t = 30 + 18 * len(lines)
            layout.title = {
                "text": "<b>" + "<br>".join(map(escape, lines)) + "</b>",
                "x": 0,
                "y": 1,
                "yanchor": "top",
                "font": {"size": 15},
                "pad": {"t": 2 + 18 * (len(lines) - 1)},  # the anchor is that of the last line
            }


Value = TypeVar("Value")


def chart(
    id: str, title: str, read: Callable[[Run], Value | None], missing: str, half: bool = False
) -> Callable[[Callable[[list[tuple[Series, Value]]], Drawing]], Callable[[Sequence[Series]], Chart]]:
    """Make a chart out of a function that draws the runs from which `read` gets something."""

    def wrap(draw: Callable[[list[tuple[Series, Value]]], Drawing]) -> Callable[[Sequence[Series]], Chart]:
        def build(shown: Sequence[Series]) -> Chart:
            found = [(item, value) for item in shown if (value := read(item.run))]
            drawing = draw(found) if found else None
            return Chart(id, (drawing and drawing.title) or title, missing, drawing, half)

        return build

    return wrap


def pattern(shape: str, **more: Any) -> dict[str, Any]:
    return {"shape": shape, "size": 6, "fgcolor": SURFACE, "fillmode": "overlay", **more}


def phase_marker(phase: str) -> dict[str, Any]:
    """Fill of a phase: the same colour and pattern in every chart, edged so that neighbours stay apart."""
    edge = {"color": SURFACE, "width": 1}
    return {"color": f"var(--phase-{phase})", "pattern": pattern(PATTERNS[phase], solidity=0.3), "line": edge}


def figure(height: int, x: dict[str, Any], y: dict[str, Any], **layout: Any) -> go.Figure:
    """An empty chart with its frame; `x` and `y` are axes, titled with their units. `height` is that of the plot
    alone: page.js adds what title, ticks and legend need."""
    font = {"family": "var(--font)", "size": 12, "color": TEXT}
    return go.Figure(
        layout={
            "template": go.layout.Template(),  # nothing but what is said here
            "font": font,
            "height": height,
            "margin": {"l": 8, "r": 16, "b": 8, "pad": 4},
            "paper_bgcolor": SURFACE,
            "plot_bgcolor": SURFACE,
            "xaxis": axis(**x),
            "yaxis": axis(**y),
            "legend": LEGEND,
            "hoverlabel": {"bgcolor": SURFACE, "bordercolor": MUTED, "font": font},
            "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": MUTED, "activecolor": TEXT},
            **layout,
        }
    )


def axis(title: str, **more: Any) -> dict[str, Any]:
    return {
        "title": {"text": title, "standoff": 10, "font": {"color": MUTED}},
        "gridcolor": GRID,
        "linecolor": GRID,
        "tickfont": {"color": MUTED},
        "ticks": "",
        "zeroline": False,
        "automargin": True,
        **more,
    }


def rows_figure(
    height: int,
    x: dict[str, Any],
    labels: Sequence[str],
    middles: Sequence[float] | None = None,
    tops: Sequence[float] | None = None,
    **layout: Any,
) -> go.Figure:
    """A chart with one named row a run, the first on top; the names need no unit. `tops` says where each row's
    drawing begins: on a narrow screen page.js writes the names there, above the rows, to save their width."""
    ticks = [float(middle) for middle in middles or range(len(labels))]
    edges = tops or [tick - 0.31 for tick in ticks]
    y = {
        "title": "",
        "tickvals": ticks,
        "ticktext": list(labels),
        "range": [ticks[-1] + 0.6, ticks[0] - 0.6],
        "showgrid": False,
        "tickfont": {"color": TEXT},
        "fixedrange": True,
    }
    names_above = [[label.replace("<br>", " "), edge] for label, edge in zip(labels, edges, strict=True)]
    return figure(height, x, y, meta={"rows": names_above}, **layout)


def heatmap(
    rows: Sequence[str],
    columns: Sequence[str],
    cells: Sequence[Sequence[float | None]],
    across: str,
    unit: str,
    span: tuple[float, float] | None = None,
) -> go.Figure:
    """A line a run and a column a thing, each cell with its figure where there is room."""
    known = [value for line in cells for value in line if value is not None]
    low, high = span or (min(known), max(known))
    digits = ".1f" if len(columns) <= 12 and high - low < 20 else ".0f"
    x = {"title": f"{across}; cells: {unit}", "type": "category", "showgrid": False}
    fig = rows_figure(34 * len(rows), x, rows, tops=[row - 0.3 for row in range(len(rows))])
    fig.update_yaxes(range=[len(rows) - 0.5, -0.5])
    bar = {"title": {"text": unit, "side": "right"}, "thickness": 10, "outlinewidth": 0, "tickfont": {"color": MUTED}}
    fig.add_heatmap(
        z=[[None if value is None else short(value) for value in line] for line in cells],
        x=list(columns),
        y=list(range(len(rows))),
        zmin=short(low),
        zmax=short(high) if high > low else short(low) + 1,
        colorscale=[[0, "var(--scale-low)"], [1, "var(--scale-high)"]],
        colorbar=bar,
        showscale=len(columns) > 24,
        xgap=2,
        ygap=2,
        textfont={"color": TEXT},
        texttemplate=f"%{{z:{digits}}}" if len(columns) <= 24 else None,
        customdata=[[row] * len(columns) for row in rows],
        hovertemplate=f"%{{x}}: %{{z:.1f}} ({unit.replace('%', '&#37;')})<extra>%{{customdata}}</extra>",
    )
    return fig


def add_bars(
    fig: go.Figure,
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
    fig.add_bar(x=[short(length) for length in lengths], y=list(rows), **{**shape, **style, **more})


def short(value: float) -> float:
    """Five figures are enough for any chart, and keep the page small."""
    return float(f"{value:.5g}")
