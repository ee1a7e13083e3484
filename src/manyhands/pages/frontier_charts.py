"""What speed costs: samples per second against test accuracy and against memory, with the frontier marked.

On the frontier are the runs than which no other is better in one respect and as good in the other. Small differences count
as none, so that noise puts nothing on it. Runs of different tasks, batch sizes or machines have a frontier each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from ..record.run import Run
from .chart import Chart, Drawing, Series, chart
from .comparing import NEGLIGIBLE, measured, setting
from .figure import NAMED, TEXT, Figure, figure, legend, short
from .figures import accuracy, memory_text, peak_memory, percent, speed, spread

EQUAL_ACCURACY = 0.005  # a smaller difference counts as none
LINE = {"color": TEXT, "width": 1.5, "dash": "dot", "shape": "vh"}  # between two runs the slower one is out of reach
RING = {"symbol": "circle-open", "size": 18, "color": TEXT, "line": {"width": 1.5}}
TOO_FEW = "Fewer than two runs have both figures."


@dataclass(frozen=True)
class Against:
    """What speed is set against; `worth` counts in units of the largest difference that is none, more is better."""

    name: str
    read: Callable[[Run], float | None]
    text: Callable[[float], str]
    worth: Callable[[float], float]
    equal: str


ACCURACY = Against(
    "accuracy", accuracy, lambda share: percent(share, 2), lambda share: share / EQUAL_ACCURACY, "0.5 points"
)
MEMORY = Against("memory", peak_memory, memory_text, lambda size: -_ratio(size), "3 %")


class Dot(NamedTuple):
    """The two figures of a run."""

    speed: float
    other: float


Found = list[tuple[Series, Dot]]
Point = tuple[float, float]  # both in units of the largest difference that is none, more is better


def frontier(points: Sequence[Point]) -> list[int]:
    """Those that no other beats. There is always one: whoever beats another has the larger sum."""

    def beats(one: Point, other: Point) -> bool:
        ahead = [mine - theirs for mine, theirs in zip(one, other, strict=True)]
        return min(ahead) >= -1 and max(ahead) > 1

    return [index for index, point in enumerate(points) if not any(beats(other, point) for other in points)]


def _ratio(value: float) -> float:
    return math.log(max(value, 1e-9)) / math.log(NEGLIGIBLE)


def _best(found: Found, against: Against) -> list[Found]:
    """The frontier of each group of runs that may be compared, slowest first."""
    groups: dict[tuple[Any, ...], Found] = {}
    for item, dot in found:
        groups.setdefault(setting(item.run), []).append((item, dot))
    return [
        sorted(
            (group[index] for index in frontier([(_ratio(dot.speed), against.worth(dot.other)) for _, dot in group])),
            key=lambda entry: entry[1],
        )
        for group in groups.values()
    ]


def _dot(against: Against, run: Run) -> Dot | None:
    fast, other = speed(run), against.read(run)
    return Dot(fast, other) if measured([run]) and fast and other is not None else None


def _draw(against: Against, found: Found) -> Drawing | None:
    if len(found) < 2:
        return None
    y, scale = _axis(against, max(dot.other for _, dot in found))
    x = {"title": "samples per second", "rangemode": "tozero", "tickformat": ",~s"}
    names = legend(["frontier", *(item.tick for item, _ in found)])
    fig = figure(260, x, y, showlegend=True, legend=names)
    best = _best(found, against)
    for index, line in enumerate(best):
        _add_frontier(fig, line, scale, first=index == 0)
    for item, dot in found:
        _add_run(fig, item, dot, scale, against.text(dot.other))
    chosen = {item.index for line in best for item, _ in line}
    rows = [
        (item.index, [item.name, f"{dot.speed:,.0f}", against.text(dot.other), "yes" if item.index in chosen else "no"])
        for item, dot in found
    ]
    headings = ("strategy", "samples/s", against.name, "on the frontier")
    return Drawing(fig, _caption(found, best, against), headings, rows)


def _axis(against: Against, largest: float) -> tuple[dict[str, Any], float]:
    """The vertical axis, and what figures are multiplied with on it."""
    if against is ACCURACY:
        return {"title": "test accuracy (%)", "ticksuffix": " %"}, 100.0
    unit, size = ("GiB", 2**30) if largest >= 2**30 else ("MiB", 2**20)
    return {"title": f"peak memory of a rank ({unit})", "rangemode": "tozero"}, 1 / size


def _add_frontier(fig: Figure, line: Found, scale: float, first: bool) -> None:
    fig.add(
        "scatter",
        [item.index for item, _ in line],
        x=[short(dot.speed) for _, dot in line],
        y=[short(scale * dot.other) for _, dot in line],
        mode="lines+markers",
        line=LINE,
        marker=RING,
        name="frontier",
        legendgroup="frontier",
        showlegend=first,
        hoverinfo="skip",
    )


def _add_run(fig: Figure, item: Series, dot: Dot, scale: float, text: str) -> None:
    low, high = spread(item.run) or (dot.speed, dot.speed)
    bars = {"array": [short(max(0.0, high - dot.speed))], "arrayminus": [short(max(0.0, dot.speed - low))]}
    fig.add(
        "scatter",
        item.index,
        x=[short(dot.speed)],
        y=[short(scale * dot.other)],
        mode="markers",
        marker={"color": item.colour, "symbol": item.symbol, "size": 9},
        error_x={"type": "data", "symmetric": False, **bars, "color": item.colour, "thickness": 1.5, "width": 4},
        name=item.tick,
        customdata=[text],
        hovertemplate="%{x:,.0f} samples/s, %{customdata}" + NAMED,
    )


def _caption(found: Found, best: Sequence[Found], against: Against) -> str:
    names = "; ".join(item.name for line in best for item, _ in line)
    alike = " of its task, batch size and machine" if len(best) > 1 else ""
    equal = f"equal: within 3 % of speed and {against.equal} of {against.name}"
    caption = f"Ringed, on the frontier: {names}. No other run{alike} beats them in one figure and equals them in the other ({equal})."
    spreads = any(spread(item.run) for item, _ in found)
    return f"{caption} Bars reach from the slowest to the fastest round." if spreads else caption


def _chart(against: Against) -> Callable[[Sequence[Series]], Chart]:
    made = chart(f"speed-{against.name}", f"Speed against {against.name}", partial(_dot, against), TOO_FEW, half=True)
    return made(partial(_draw, against))


accuracy_frontier, memory_frontier = _chart(ACCURACY), _chart(MEMORY)
