"""Speed-up over ranks: a line per strategy with the spread of its rounds, beside what more ranks would bring at best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import log10

from .chart import DASHES, NAME_WIDTH, SYMBOLS, Chart, Drawing, Series
from .comparing import name_lines
from .figure import MUTED, NAMED, Figure, figure, legend, short
from .figures import kind, spread
from .scaling import Point, Scaling, cores, scalings

LOGARITHMIC = 4  # a scale on which the most are more than so many times the fewest
Known = Mapping[int, Series]  # by the identity of their runs
DOUBLINGS = [2.0**power for power in range(-8, 20)]


def scaling_charts(shown: Sequence[Series]) -> list[Chart]:
    """One chart of a fixed batch and one of a batch that grows, as far as there are such rows."""
    known = {id(item.run): item for item in shown}
    found = scalings([item.run for item in shown])
    charts = []
    for weak, name in ((False, "Strong scaling (fixed batch)"), (True, "Weak scaling (growing batch)")):
        lines = [one for one in found if one.weak == weak]
        if lines:
            drawing = _draw(lines, known)
            charts.append(Chart("scaling-weak" if weak else "scaling", name, "", drawing))
    return charts


def _draw(lines: Sequence[Scaling], shown: Known) -> Drawing:
    counts = sorted({run.ranks for one in lines for run in (*one.runs, one.base)})
    best = _ideal(lines)
    heights = [*best.values(), *(end for one in lines for point in one.points for end in (point.low, point.high))]
    across, up = _spacing(counts), _spacing(heights)
    x = {"title": "ranks", "type": across, "tickvals": counts, "ticktext": list(map(str, counts))}
    y = {"title": "speed-up", "type": up, "ticksuffix": "x"}
    fig = figure(
        300,
        x,
        y
        | (
            {"tickvals": DOUBLINGS, "ticktext": [f"{value:g}x" for value in DOUBLINGS]}
            if up == "log"
            else {"rangemode": "tozero"}
        ),
        showlegend=True,
        legend=legend(("ideal", *(_name(one) for one in lines))),
    )
    fig.add(
        "scatter",
        x=list(best),
        y=[short(value) for value in best.values()],
        mode="lines",
        line={"color": MUTED, "width": 1.5},
        name="ideal",
        hovertemplate="at best %{y:.2f}x on %{x}" + NAMED,
    )
    for index, one in enumerate(lines):
        _add_line(fig, one, index, [shown[id(run)] for run in one.runs])
    known = {cores(run) for one in lines for run in one.runs if kind(run) == "cpu"}
    if len(known) == 1 and (held := known.pop()) and counts[0] <= held < counts[-1]:
        _mark_cores(fig, held, across)
    headings = ("strategy", "ranks", "threads", "batch", "speed-up", "rounds", "ideal")
    rows = [(shown[id(point.run)].index, _row(one, point)) for one in lines for point in one.points]
    return Drawing(fig, _caption(lines), headings, rows)


def _spacing(values: Sequence[float]) -> str:
    return "log" if max(values) > LOGARITHMIC * min(values) > 0 else "linear"


def _ideal(lines: Sequence[Scaling]) -> dict[int, float]:
    """The best speed-up by ranks, as far as it is known."""
    best = {one.base.ranks: 1.0 for one in lines}
    for one in lines:
        best |= {run.ranks: ideal for run in one.runs if (ideal := one.ideal(run)) is not None}
    return dict(sorted(best.items()))


def _name(one: Scaling) -> str:
    return "<br>".join(map(escape, name_lines(one.name, NAME_WIDTH)))


def _add_line(fig: Figure, one: Scaling, index: int, items: Sequence[Series]) -> None:
    points, colour = one.points, items[0].colour
    bars = {
        "array": [short(point.high - point.speedup) for point in points],
        "arrayminus": [short(point.speedup - point.low) for point in points],
    }
    fig.add(
        "scatter",
        [item.index for item in items],
        x=[point.run.ranks for point in points],
        y=[short(point.speedup) for point in points],
        mode="lines+markers",
        line={"color": colour, "dash": DASHES[index % len(DASHES)], "width": 2},
        marker={"color": colour, "symbol": SYMBOLS[index % len(SYMBOLS)], "size": 9},
        error_y={"type": "data", "symmetric": False, **bars, "color": colour, "thickness": 1.5, "width": 5},
        name=_name(one),
        customdata=[[f"{point.low:.2f} to {point.high:.2f}", point.run.threads or "?"] for point in points],
        hovertemplate="%{y:.2f}x (%{customdata[0]}) on %{x} ranks, threads of each: %{customdata[1]}" + NAMED,
    )


def _mark_cores(fig: Figure, held: float, spacing: str) -> None:
    """Beyond this line ranks share cores."""
    line = {"color": MUTED, "width": 1, "dash": "dash"}
    edge = {"type": "line", "x0": held, "x1": held, "y0": 0, "y1": 1, "yref": "paper", "line": line, "layer": "below"}
    fig.layout["shapes"] = [edge]
    place = log10(held) if spacing == "log" else held  # where plotly wants logarithms: here and not for lines
    note = {"text": f"{held:g} cores", "font": {"color": MUTED}}
    fig.annotate(x=short(place), y=1, yref="paper", yanchor="top", xanchor="right", **note)


def _row(one: Scaling, point: Point) -> list[str]:
    run, ideal = point.run, one.ideal(point.run)
    known = (run.ranks, run.threads, run.batch_size)
    figures = f"{point.speedup:.2f}x", f"{point.low:.2f} to {point.high:.2f}", "-" if ideal is None else f"{ideal:.2f}x"
    return [one.name, *("-" if value is None else str(value) for value in known), *figures]


def _caption(lines: Sequence[Scaling]) -> str:
    fewest = {one.base.ranks for one in lines if one.over_itself}
    bases = [f"the same strategy on {'1 rank' if fewest == {1} else 'its fewest ranks'}"] if fewest else []
    bases += [] if all(one.over_itself for one in lines) else ["one process with all cores"]
    parts = [f"Speed-up is over {', else over '.join(bases)}."]
    if any(spread(run) for one in lines for run in one.runs):
        parts.append("Bars reach from the slowest to the fastest round.")
    else:
        parts.append("Each speed was measured once: bars show how far off that may be.")
    parts.append("Ideal: every rank as fast as one process with its threads, as long as there are cores for all.")
    if lines[0].weak:
        parts.append("The batch grows with the ranks, so speed is counted in samples.")
    return " ".join(parts)
