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

from ..measure.run import PHASES, Run
from .figures import names

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
        return "<br>".join(escape(line) for line in _lines(self.name))


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
    """An empty chart with its frame; `x` and `y` are axes, each with a title that names its unit."""
    font = {"family": "var(--font)", "size": 12, "color": TEXT}
    return go.Figure(
        layout={
            "template": go.layout.Template(),  # nothing but what is said here
            "title": {"text": f"<b>{escape(title)}</b>", "x": 0, "y": 0.99, "yanchor": "top", "font": {"size": 15}},
            "font": font,
            "height": height,
            "margin": {"l": 8, "r": 16, "t": 48, "b": 8, "pad": 4},
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


def rows_axis(title: str, labels: Sequence[str], positions: Sequence[float] | None = None) -> dict[str, Any]:
    """A vertical axis with one named row a run, the first on top; the names need no unit."""
    places = list(positions) if positions is not None else list(range(len(labels)))
    return {
        "title": title,
        "tickvals": places,
        "ticktext": list(labels),
        "range": [max(places, default=0) + 0.6, min(places, default=0) - 0.6],
        "showgrid": False,
        "tickfont": {"color": TEXT},
        "fixedrange": True,
    }


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
    fig = figure(
        title,
        130 + 34 * len(rows),
        {"title": f"{across}; cells: {unit}", "type": "category", "showgrid": False},
        rows_axis("", rows),
    )
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


def _lines(name: str, width: int = 18) -> list[str]:
    """Break a name after `:`, `,` or before ` (`, so that no line is much longer than `width`."""
    words = name.replace(":", ":\0").replace(",", ",\0").replace(" (", "\0(").split("\0")
    lines = [words[0]]
    for word in words[1:]:
        if len(lines[-1]) + len(word) <= width:
            lines[-1] += (" " if word.startswith("(") else "") + word
        else:
            lines.append(word)
    return lines
