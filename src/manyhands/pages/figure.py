"""A figure as plain data, as plotly.js draws it: traces and a layout of dictionaries and lists, with titled axes.

Colours are written as CSS variables (`var(--series-1)`): the page's style sheet is the only place that knows
them, in light and in dark, and charts.js puts them in when a chart is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

TEXT, MUTED, GRID, SURFACE = "var(--text)", "var(--muted)", "var(--grid)", "var(--surface)"
NAMED = "<extra>%{fullData.name}</extra>"  # at the end of what a mark says when pointed at: whose it is
LETTER = 7  # pixels, at most, of a letter in a legend
FEWEST_TICKS = 3
MOST_TICKS = 8

Owner = int | Sequence[int] | None  # the run a trace belongs to, or the run of each of its points


@dataclass
class Figure:
    """What is drawn; `height` in its layout is that of the plot alone: charts.js adds what title, ticks and legend need."""

    layout: dict[str, Any]
    data: list[dict[str, Any]] = field(default_factory=list)

    def add(self, kind: str, owner: Owner = None, **trace: Any) -> None:
        """A trace. charts.js leaves it out, or those of its points, whose run is hidden."""
        known = {name: value for name, value in trace.items() if value is not None}
        self.data.append({"type": kind, **({} if owner is None else {"meta": owner}), **known})

    def annotate(self, **note: Any) -> None:
        self.layout.setdefault("annotations", []).append({"showarrow": False, **note})


def figure(height: int, x: dict[str, Any], y: dict[str, Any], **layout: Any) -> Figure:
    """An empty chart with its frame; `x` and `y` are axes, titled with their units."""
    font = {"family": "var(--font)", "size": 12, "color": TEXT}
    return Figure(
        {
            "font": font,
            "height": height,
            "margin": {"l": 8, "r": 16, "t": 30, "b": 8, "pad": 4},
            "paper_bgcolor": SURFACE,
            "plot_bgcolor": SURFACE,
            "xaxis": axis(**x),
            "yaxis": axis(**y),
            **({"legend": legend()} if layout.get("showlegend", True) else {}),
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
        **{name: value for name, value in more.items() if value is not None},
    }


def legend(names: Iterable[str] = ()) -> dict[str, Any]:
    """Below the plot, in columns as wide as the longest line of a name: charts.js makes the chart taller by their lines."""
    longest = max((len(line) for name in names for line in name.split("<br>")), default=13)
    return {
        "orientation": "h",
        "xref": "container",
        "yref": "container",
        "yanchor": "bottom",
        "y": 0,
        "x": 0,
        "traceorder": "normal",
        "entrywidthmode": "pixels",
        "entrywidth": max(60, LETTER * longest),
        "font": {"color": TEXT},
    }


def log_axis(values: Iterable[float]) -> dict[str, Any]:
    """A logarithmic axis with few ticks that are easy to read: 1, 2 and 5 where it is short, else powers of ten alone."""
    known = [value for value in values if value > 0] or [1.0]
    low, high = math.log10(min(known)), math.log10(max(known))
    powers = range(math.floor(low) - 1, math.ceil(high) + 2)
    if high - low > 2:
        stride = math.ceil((high - low) / MOST_TICKS)
        ticks = [10.0**power for power in powers if power % stride == 0]
    else:
        for steps in ((1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8)):
            ticks = [float(f"{step}e{power}") for power in powers for step in steps]
            if sum(10**low <= tick <= 10**high for tick in ticks) >= FEWEST_TICKS:
                break
    return {"type": "log", "tickvals": ticks, "ticktext": list(map(_tick, ticks))}


def _tick(value: float) -> str:
    if 1e-3 <= value < 1e6:
        return f"{value:,.10g}"
    power = math.floor(math.log10(value) + 1e-9)
    factor = f"{value / 10.0**power:.3g}"
    return f"{'' if factor == '1' else factor + '·'}10<sup>{power}</sup>"


def short(value: float) -> float:
    """Five figures are enough for any chart, and keep the page small."""
    return float(f"{value:.5g}")
