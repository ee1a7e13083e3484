"""How well the model learned: loss, test accuracy, accuracy of every class, staleness of the gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from html import escape
from typing import Any

import numpy as np

from ..record.run import Run
from ..record.thinned import thinned
from .chart import Drawing, Series, chart
from .figure import NAMED, Figure, figure, legend, log_axis, short
from .figures import accuracy, number, percent
from .row_figure import PATTERN, even_rows, heatmap, rows_figure

EPOCHS = 200  # points of the accuracies at most
POINTS = 60  # a curve has at most so many points; each is the mean of a window of steps
CLASSES = 20  # so many classes fit a chart; of more, the hardest are shown
BINS = 40  # bars of a histogram at most
FILLS = ("", "/", "x", ".", "-", "|")  # of the bars of one run
TICKS = 12  # named whole numbers under them at most
Points = Sequence[tuple[float, float]]


def _loss_by_steps(run: Run) -> Points:
    return _windows(float, run)


def _loss_by_time(run: Run) -> Points:
    """An epoch's seconds spread evenly over its steps."""
    steps, ends = len(run.losses or []) * _each(run), [(0, 0.0)]  # steps and seconds at the end of every epoch
    for epoch in run.epochs or []:
        seconds, samples = number(epoch.get("seconds")), number(epoch.get("samples"))
        if not seconds or not samples or not run.batch_size or ends[-1][0] == steps:
            break
        step, start = ends[-1]
        ends.append((min(step + math.ceil(samples / run.batch_size), steps), start + seconds))
    if ends[-1][0] != steps:
        total = number(run.seconds)
        ends = [(0, 0.0), (steps, total)] if total else []
    places, times = [step for step, _ in ends], [seconds for _, seconds in ends]
    return _windows(lambda step: float(np.interp(step, places, times)), run) if ends else []


def _windows(place: Callable[[int], float], run: Run) -> Points:
    """The mean loss of every window of steps, at the place of its last step. All at once: a run may have a million."""
    losses, size, points = np.array(run.losses or [], dtype=float), _window(run), []
    for start in range(0, len(losses), size):
        window = losses[start : start + size]
        known = window[np.isfinite(window)]
        if known.size:
            points.append((place((start + window.size) * _each(run)), float(known.mean())))
    return points


def _each(run: Run) -> int:
    """How many steps a loss stands for."""
    return run.steps_per_loss or 1


def _window(run: Run) -> int:
    return max(1, math.ceil(len(run.losses or []) / POINTS))


def _loss(unit: str, unit_name: str, found: list[tuple[Series, Points]]) -> Drawing:
    values = [loss for _, points in found for _, loss in points]
    steep = min(values) > 0 and max(values) > 20 * min(values)
    y = {"title": "loss per sample", **(log_axis(values) if steep else {})}
    names = legend(item.tick for item, _ in found)
    fig = figure(220, {"title": unit, "rangemode": "tozero"}, y, legend=names)
    for item, points in found:
        _add_curve(fig, item, points, "loss %{y:.4g} at %{x:.4~g}", mode="lines" if len(points) > 1 else "markers")
    window = max(_window(item.run) * _each(item.run) for item, _ in found)
    caption = f"Each point is the mean of up to {window} steps." if window > 1 else "Each point is one step."
    caption += " The scale of the loss is logarithmic." if steep else ""
    rows = [
        (item.index, [item.name, f"{points[0][1]:.4g}", f"{points[-1][1]:.4g}", f"{points[-1][0]:,.4g}"])
        for item, points in found
    ]
    return Drawing(fig, caption, ("strategy", "first loss", "last loss", unit_name), rows)


def _add_curve(fig: Figure, item: Series, points: Points, hover: str, **more: Any) -> None:
    x, y = ([short(value) for value in values] for values in zip(*points, strict=True))
    line = {"color": item.colour, "dash": item.dash, "width": 2}
    fig.add("scatter", item.index, x=x, y=y, line=line, name=item.tick, hovertemplate=hover + NAMED, **more)


NO_LOSS = "No run recorded the loss of its steps."
loss_by_time = chart("loss-time", "Training loss by time", _loss_by_time, NO_LOSS, half=True)(
    partial(_loss, "time in training steps (seconds)", "seconds")
)
loss_by_steps = chart("loss-steps", "Training loss by steps", _loss_by_steps, NO_LOSS, half=True)(
    partial(_loss, "steps (batches over all ranks)", "steps")
)


def _accuracies(run: Run) -> Points:
    """In percent, after each epoch; of the end alone where that is all there is."""
    points = [
        (number(epoch.get("epoch")) or index + 1, 100 * value)
        for index, epoch in enumerate(run.epochs or [])
        if (value := number(epoch.get("test_accuracy"))) is not None
    ]
    points = list(thinned(points, EPOCHS))
    final = accuracy(run)
    return points or ([(max(1, len(run.epochs or [])), 100 * final)] if final is not None else [])


@chart("accuracy", "Test accuracy after each epoch", _accuracies, "No test accuracy was recorded.")
def accuracy_chart(found: list[tuple[Series, Points]]) -> Drawing:
    """Test accuracy after each epoch; with one epoch only, a dot per run."""
    longest = max(len(points) for _, points in found)
    last = max(points[-1][0] for _, points in found)
    unit = {"title": "test accuracy (%)", "ticksuffix": " %"}
    if longest == 1:
        fig, title = _ends(found, unit), "Test accuracy at the end"
    else:
        x, names = {"title": "epochs", "dtick": 1 if last <= 20 else None}, legend(item.tick for item, _ in found)
        fig, title = figure(220, x, unit, legend=names), None
        for item, points in found:
            marker = {"symbol": item.symbol, "size": 8, "color": item.colour}
            _add_curve(fig, item, points, "%{y:.2f} % after epoch %{x}", mode="lines+markers", marker=marker)
    rows = [
        (item.index, [item.name, *(f"{value:.2f} %" for _, value in (points[0], points[-1]))]) for item, points in found
    ]
    caption = "The scale does not begin at zero."
    if any(len(item.run.epochs or []) > EPOCHS for item, _ in found):
        caption += f" At most {EPOCHS} epochs are shown."
    return Drawing(fig, caption, ("strategy", "first", "last"), rows, title)


def _ends(found: list[tuple[Series, Points]], unit: dict[str, str]) -> Figure:
    ends = [points[0][1] for _, points in found]
    margin = max(0.08 * (max(ends) - min(ends)), 0.1)
    x = {**unit, "range": [min(ends) - margin, max(ends) + 3 * margin]}  # room for the figures beside the marks
    fig = rows_figure(even_rows([item for item, _ in found]), 36, x, showlegend=False)
    for row, (end, (item, _)) in enumerate(zip(ends, found, strict=True)):
        fig.add(
            "scatter",
            x=[short(end)],
            y=[row],
            mode="markers+text",
            marker={"color": item.colour, "symbol": item.symbol, "size": 11},
            text=[f"{end:.2f} %"],
            textposition="middle right",
            cliponaxis=False,
            name=item.safe,
            hovertemplate="%{x:.2f} %" + NAMED,
        )
    return fig


def _per_class(run: Run) -> dict[str, float]:
    found = (run.test or {}).get("per_class") or {}
    return {str(name): share for name, value in found.items() if (share := number(value)) is not None}


@chart("classes", "Test accuracy of every class", _per_class, "No run recorded the accuracy of each class.")
def classes_chart(found: list[tuple[Series, dict[str, float]]]) -> Drawing:
    every = list(dict.fromkeys(name for _, shares in found for name in shares))
    lowest, where, under = min((share, name, item.name) for item, shares in found for name, share in shares.items())
    caption = f"Lowest: {percent(lowest, 1)} on class {where} under {under}."
    classes = every
    if len(every) > CLASSES:
        hardest = sorted(every, key=lambda name: min(shares.get(name, 1.0) for _, shares in found))[:CLASSES]
        classes = [name for name in every if name in hardest]
        caption += f" Of {len(every)} classes, the {CLASSES} hardest are shown."
    lines = [[shares.get(name) for name in classes] for _, shares in found]
    cells = [[None if share is None else 100 * share for share in line] for line in lines]
    fig = heatmap([item for item, _ in found], list(map(escape, classes)), cells, "class", "accuracy (%)")
    rows = [
        (item.index, [item.name, *("-" if share is None else percent(share, 1) for share in line)])
        for (item, _), line in zip(found, lines, strict=True)
    ]
    return Drawing(fig, caption, ("strategy", *classes), rows)


def _staleness(run: Run) -> list[float]:
    """How often each number of updates was counted."""
    counts = [number(value) or 0.0 for value in (run.staleness or {}).get("histogram") or []]
    return counts if sum(counts) > 0 else []


@chart("staleness", "Staleness of gradients", _staleness, "No run was asynchronous, so no gradient was stale.")
def staleness_chart(found: list[tuple[Series, list[float]]]) -> Drawing:
    """How many updates of others came between reading the weights and writing the gradient."""
    values = max(len(counts) for _, counts in found)
    width = max(1, math.ceil(values / BINS))
    x = {"title": "staleness (updates by other ranks)", "dtick": max(width, math.ceil(values / TICKS))}
    y = {"title": "share of gradients (%)", "ticksuffix": " %", "rangemode": "tozero"}
    names = legend(item.tick for item, _ in found)
    fig = figure(220, x, y, barmode="group", showlegend=True, legend=names)
    for index, (item, counts) in enumerate(found):
        binned = [sum(counts[start : start + width]) for start in range(0, len(counts), width)]
        fig.add(
            "bar",
            item.index,
            x=[start * width for start in range(len(binned))],
            y=[short(100 * value / sum(counts)) for value in binned],
            marker={"color": item.colour, "pattern": {**PATTERN, "shape": FILLS[index % len(FILLS)]}},
            name=item.tick,
            hovertemplate="staleness %{x}: %{y:.1f} % of the gradients" + NAMED,
        )
    rows = [(item.index, [item.name, *_staleness_text(item.run.staleness or {})]) for item, _ in found]
    means = "; ".join(f"{name} {mean} on average, {most} at most" for _, (name, mean, most) in rows)
    caption = f"How many updates of others came between reading the weights and writing the gradient: {means}."
    caption += f" Each bar stands for {width} values." if width > 1 else ""
    return Drawing(fig, caption, ("strategy", "mean", "most"), rows)


def _staleness_text(known: dict[str, object]) -> tuple[str, str]:
    mean, most = number(known.get("mean")), number(known.get("max"))
    return "-" if mean is None else f"{mean:.2f}", "-" if most is None else f"{most:,.0f}"
