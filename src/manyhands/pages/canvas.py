"""What every chart shares: its frame, its axes and its colours.

Colours are written as CSS variables (`var(--series-1)`): the page's style sheet is the only place that knows
them, in light and in dark, and page.js puts them in when a chart is drawn. No chart tells things apart by
colour alone: lines differ in dash and marker too, phases in pattern.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import plotly.graph_objects as go

from ..record.run import PHASES, Run
from .figures import name_lines, names

COLOURS = 8  # --series-1 .. --series-8 in page.css
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "cross", "star", "triangle-down")
PATTERNS = ("", "\\", "x", "", "", "", "/", "", ".")  # one a phase, in the order of PHASES
TEXT, MUTED, GRID, SURFACE = "var(--text)", "var(--muted)", "var(--grid)", "var(--surface)"

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


@dataclass(frozen=True)
class Chart:
    """A chart with its words and figures; without `figure`, the caption says why there is nothing to draw."""

    id: str
    title: str
    caption: str
    figure: go.Figure | None = None
    legend: int = 0  # entries
    headings: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = field(default_factory=list)
    half: bool = False  # may share a line with another chart


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


def phase_colour(phase: str) -> str:
    return f"var(--phase-{phase})"


def phase_marker(phase: str) -> dict[str, Any]:
    """Fill of a phase: the same colour and pattern in every chart, edged so that neighbours stay apart."""
    pattern = {
        "shape": PATTERNS[PHASES.index(phase)],
        "size": 6,
        "solidity": 0.3,
        "fgcolor": SURFACE,
        "fillmode": "overlay",
    }
    return {"color": phase_colour(phase), "pattern": pattern, "line": {"color": SURFACE, "width": 1}}


def figure(title: str, height: int, x: dict[str, Any], y: dict[str, Any], **layout: Any) -> go.Figure:
    """An empty chart with its frame; `x` and `y` are axes, titled with their units. `height` is that of the plot
    alone: page.js adds what title, ticks and legend need."""
    lines = name_lines(title, 36)
    font = {"family": "var(--font)", "size": 12, "color": TEXT}
    return go.Figure(
        layout={
            "template": go.layout.Template(),  # nothing but what is said here
            "title": {
                "text": "<b>" + "<br>".join(map(escape, lines)) + "</b>",
                "x": 0,
                "y": 1,
                "yanchor": "top",
                "pad": {"t": 2 + 18 * (len(lines) - 1)},  # the anchor is that of the last line
                "font": {"size": 15},
            },
            "font": font,
            "height": height,
            "margin": {"l": 8, "r": 16, "t": 30 + 18 * len(lines), "b": 8, "pad": 4},
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
    title: str,
    height: int,
    x: dict[str, Any],
    labels: Sequence[str],
    places: Sequence[float] | None = None,
    tops: Sequence[float] | None = None,
    **layout: Any,
) -> go.Figure:
    """A chart with one named row a run, the first on top; the names need no unit. `tops` says where each row's
    drawing begins: on a narrow screen page.js writes the names there, above the rows, to save their width."""
    middles = [float(place) for place in places or range(len(labels))]
    edges = list(tops) if tops is not None else [middle - 0.31 for middle in middles]
    y = {
        "title": "",
        "tickvals": middles,
        "ticktext": list(labels),
        "range": [max(middles, default=0) + 0.6, min(middles, default=0) - 0.6],
        "showgrid": False,
        "tickfont": {"color": TEXT},
        "fixedrange": True,
    }
    names_above = [[label.replace("<br>", " "), edge] for label, edge in zip(labels, edges, strict=True)]
    return figure(title, height, x, y, meta={"rows": names_above}, **layout)


def heatmap(
    title: str,
    rows: Sequence[str],
    columns: Sequence[str],
    cells: Sequence[Sequence[float | None]],
    across: str,
    unit: str,
    span: tuple[float, float] | None = None,
) -> go.Figure:
    """A line a run and a column a thing, each cell with its figure where there is room."""
    known = [value for line in cells for value in line if value is not None]
    low, high = span or (min(known, default=0.0), max(known, default=1.0))
    digits = ".1f" if len(columns) <= 12 and high - low < 20 else ".0f"
    fig = rows_figure(
        title,
        34 * len(rows),
        {"title": f"{across}; cells: {unit}", "type": "category", "showgrid": False},
        rows,
        tops=[place - 0.3 for place in range(len(rows))],
    )
    fig.update_yaxes(range=[len(rows) - 0.5, -0.5])
    fig.add_heatmap(
        z=[list(line) for line in cells],
        x=list(columns),
        y=list(range(len(rows))),
        zmin=low,
        zmax=high if high > low else low + 1,
        colorscale=[[0, "var(--scale-low)"], [1, "var(--scale-high)"]],
        colorbar={
            "title": {"text": unit, "side": "right"},
            "thickness": 10,
            "outlinewidth": 0,
            "tickfont": {"color": MUTED},
        },
        showscale=len(columns) > 24,
        xgap=2,
        ygap=2,
        textfont={"color": TEXT},
        texttemplate=f"%{{z:{digits}}}" if len(columns) <= 24 else None,
        customdata=[[row] * len(columns) for row in rows],
        hovertemplate=f"%{{x}}: %{{z:.1f}} ({unit.replace('%', '&#37;')})<extra>%{{customdata}}</extra>",
    )
    return fig


def short(value: float) -> float:
    """Five figures are enough for any chart, and keep the page small."""
    return float(f"{value:.5g}")
