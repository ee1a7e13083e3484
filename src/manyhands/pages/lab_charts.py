"""The curves of an experiment: a line per row or sweep with its spread over seeds; what was published is dashed and grey."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from .chart import COLOURS, DASHES, SYMBOLS, Chart, Drawing
from .figure import MUTED, NAMED, Figure, figure, legend, log_axis, short
from .figures import number

FEW = 20  # points of a line that have room for bars and marks each
TICKS = 12  # places named one by one at most
LEGEND_WIDTH = 24  # letters of a name in one line of the legend
PUBLISHED = " (published)"  # ends the name of a line whose measured one has the same look
Point = tuple[float, float, float, float]  # x, y, lowest, highest
Drawn = tuple[Mapping[str, Any], list[Point]]  # a line as it is stored, and its points


def curves(drawn: Sequence[Mapping[str, Any]]) -> list[Chart]:
    return [_chart(index, curve) for index, curve in enumerate(drawn, start=1)]


def points_of(line: Mapping[str, Any]) -> list[Point]:
    """The points of a line that are known, from left to right."""
    known = [tuple(map(number, point)) for point in line["points"]]
    return sorted(
        (x, y, y if low is None else low, y if high is None else high)
        for x, y, low, high in known
        if x is not None and y is not None
    )


def lines_of(curve: Mapping[str, Any]) -> list[Drawn]:
    """The lines that have points; none where all of them stand above one place, for that is no curve."""
    lines = [(line, points) for line in curve["lines"] if (points := points_of(line))]
    return lines if len({point[0] for _, points in lines for point in points}) > 1 else []


def _chart(index: int, curve: Mapping[str, Any]) -> Chart:
    lines = lines_of(curve)
    drawing = _drawing(curve, lines) if lines else None
    return Chart(f"curve-{index}", curve["title"], "There are too few points here for a curve.", drawing)


def _drawing(curve: Mapping[str, Any], lines: Sequence[Drawn]) -> Drawing:
    steep = curve["logarithmic"]
    places = sorted({x for _, points in lines for x, *_ in points})
    x = {"title": escape(curve["x"]), **_across(places, "x" in steep)}
    heights = [value for _, points in lines for _, *own in points for value in own]
    y = {"title": escape(curve["y"]), **(log_axis(heights) if "y" in steep else {})}
    fig = figure(280, x, y, showlegend=True, legend=legend(["-" * LEGEND_WIDTH]))
    own = list(dict.fromkeys(str(line["name"]).removesuffix(PUBLISHED) for line, _ in lines))
    for line, points in lines:
        _add(fig, line, points, own.index(str(line["name"]).removesuffix(PUBLISHED)))
    names = [str(line["name"]) for line, _ in lines]
    by_place = [{x: point for x, *point in points} for _, points in lines]
    rows = [(None, [f"{x:,.6g}", *(_cell(points.get(x)) for points in by_place)]) for x in places]
    return Drawing(fig, _caption(curve, lines), (str(curve["x"]), *names), rows)


def _across(places: Sequence[float], steep: bool) -> dict[str, Any]:
    """The horizontal axis: its places by name where they are few whole numbers."""
    whole = all(x == int(x) for x in places)
    few = whole and len(places) <= TICKS and (steep or places[-1] - places[0] < TICKS)
    named = {"tickvals": list(places), "ticktext": [f"{x:,.0f}" for x in places]} if few else {}
    return {**log_axis(places), **named} if steep else named


def _add(fig: Figure, line: Mapping[str, Any], points: Sequence[Point], index: int) -> None:
    published = bool(line["published"])
    colour = MUTED if published else f"var(--series-{index % COLOURS + 1})"
    dash = "dash" if published else DASHES[index % len(DASHES)]
    symbol = SYMBOLS[index % len(SYMBOLS)] + ("-open" if published else "")
    x, y, low, high = ([short(value) for value in values] for values in zip(*points, strict=True))
    few, spread = len(points) <= FEW, low != high
    bars = {"array": [short(b - a) for a, b in zip(y, high, strict=True)]}
    bars["arrayminus"] = [short(a - b) for a, b in zip(y, low, strict=True)]
    shape = {"type": "data", "symmetric": False, "color": colour, "thickness": 1.5, "width": 5, **bars}
    fig.add(
        "scatter",
        x=x,
        y=y,
        mode="lines+markers" if few else "lines",
        line={"color": colour, "dash": dash, "width": 2},
        marker={"color": colour, "symbol": symbol, "size": 8},
        error_y=shape if few and spread else None,
        name="<br>".join(escape(part) for part in textwrap.wrap(str(line["name"]), LEGEND_WIDTH)),
        hovertemplate="%{y:.5~g} at %{x:.5~g}" + NAMED,
    )
    if spread and not few:  # bars at so many points would hide the line
        for edge in (low, high):
            thin = {"color": colour, "width": 0.75, "dash": dash}
            fig.add("scatter", x=x, y=edge, mode="lines", line=thin, opacity=0.6, hoverinfo="skip", showlegend=False)


def _cell(point: Sequence[float] | None) -> str:
    if point is None:
        return "-"
    middle, low, high = (f"{value:,.5g}" for value in point)
    return middle if low == high else f"{middle} ({low} to {high})"


def _caption(curve: Mapping[str, Any], lines: Sequence[Drawn]) -> str:
    said = []
    if any(low != high for _, points in lines for *_, low, high in points):
        said.append("Lines are medians; bars or thin lines reach from the lowest to the highest seed.")
    if any(line["published"] for line, _ in lines):
        said.append("Grey and dashed: as published.")
    if curve["logarithmic"]:
        axes = {"x": "horizontal scale is", "y": "vertical scale is"}.get(curve["logarithmic"], "scales are")
        said.append(f"The {axes} logarithmic.")
    return " ".join(said) or "One seed: no spread is known."
