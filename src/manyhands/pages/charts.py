"""The charts of a report, each made from runs alone. A chart without data says why instead of being empty."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from statistics import fmean
from typing import Any

from .canvas import SURFACE, TEXT, Chart, Series, figure, heatmap, rows_figure, short
from .figures import accuracy, number, percent, speed, speeds, spread

POINTS = 60  # a curve has at most so many points; each is the mean of a window of steps
CLASSES = 20  # so many classes fit a chart; of more, the hardest are shown
BINS = 40  # bars of a histogram at most
TICKS = 12  # named whole numbers under them at most


def speed_chart(shown: Sequence[Series]) -> Chart:
    """Samples per second of every run: the median as a bar, every round as a dot."""
    title = "Samples per second"
    measured = [item for item in shown if speed(item.run)]
    if not measured:
        return Chart("speed", title, "No run has a speed.")
    fig = rows_figure(
        title,
        40 * len(measured),
        {"title": "samples per second", "rangemode": "tozero", "tickformat": ",~s"},
        [item.tick for item in measured],
        showlegend=False,
    )
    fastest = max(speed(item.run) or 0 for item in measured)
    for row, item in enumerate(measured):
        middle, rounds = speed(item.run) or 0.0, speeds(item.run)
        roomy = middle > fastest / 3
        fig.add_bar(
            x=[short(middle)],
            y=[row],
            orientation="h",
            width=0.62,
            marker={"color": "var(--baseline)" if item.run.strategy == "single" else "var(--accent)"},
            text=f"<b>{middle:,.0f}</b>" if roomy else "",
            textposition="inside",
            insidetextanchor="start",
            textfont={"color": SURFACE},
            name=item.safe,
            hovertemplate="%{x:,.0f} samples/s<extra>%{fullData.name}</extra>",
        )
        fig.add_scatter(
            x=[short(value) for value in rounds],
            y=[row] * len(rounds),
            mode="markers",
            marker={"color": SURFACE, "size": 8, "line": {"color": TEXT, "width": 1.5}},
            name=item.safe,
            hovertemplate="a round: %{x:,.0f} samples/s<extra>%{fullData.name}</extra>",
        )
        if not roomy:  # beside the bar and its dots
            place = short(max([middle, *rounds]))
            fig.add_annotation(x=place, y=row, text=f"<b>{middle:,.0f}</b>", showarrow=False, xanchor="left", xshift=8)
    caption = "Bars in grey are one process. "
    if any(spread(item.run) for item in measured):
        caption += "A bar is the median, a dot one round; rows of one comparison took turns in every round."
    else:
        caption += "Each speed was measured once: differences of less than a tenth mean little."
    rows = [
        [item.name, f"{speed(item.run):,.0f}", ", ".join(f"{value:,.0f}" for value in speeds(item.run)) or "-"]
        for item in measured
    ]
    return Chart("speed", title, caption, fig, headings=("strategy", "samples/s", "rounds"), rows=rows)


def loss_by_time(shown: Sequence[Series]) -> Chart:
    return _loss("loss-time", "Training loss by time", "time in training steps (seconds)", shown, _step_seconds)


def loss_by_steps(shown: Sequence[Series]) -> Chart:
    return _loss("loss-steps", "Training loss by steps", "steps (batches over all ranks)", shown, _step_numbers)


def _step_numbers(item: Series) -> list[float] | None:
    return [float(step + 1) for step in range(len(item.run.losses))]


def _step_seconds(item: Series) -> list[float] | None:
    """When each step ended: an epoch's seconds spread evenly over its steps."""
    run, times = item.run, list[float]()
    steps, start = len(run.losses), 0.0
    for epoch in run.epochs or []:
        seconds, samples = number(epoch.get("seconds")), number(epoch.get("samples"))
        if not seconds or not samples or not run.batch_size:
            break
        length = min(math.ceil(samples / run.batch_size), steps - len(times))
        times += [start + seconds * (step + 1) / length for step in range(length)]
        start += seconds
    if len(times) == steps:
        return times
    total = number(run.seconds)
    return [total * (step + 1) / steps for step in range(steps)] if total else None


def _loss(key: str, title: str, unit: str, shown: Sequence[Series], places: Any) -> Chart:
    curves, window = [], 1
    for item in shown:
        losses = [number(value) for value in item.run.losses or []]
        where = places(item) if any(value is not None for value in losses) else None
        if where:
            window = max(window, math.ceil(len(losses) / POINTS))
            curves.append((item, _windows(where, losses)))
    if not curves:
        return Chart(key, title, "No run recorded the loss of its steps.", half=True)
    values = [loss for _, points in curves for _, loss in points]
    steep = min(values) > 0 and max(values) > 20 * min(values)
    fig = figure(
        title,
        220,
        {"title": unit, "rangemode": "tozero"},
        {"title": "loss per sample", "type": "log" if steep else "linear", "dtick": "D2" if steep else None},
    )
    for item, points in curves:
        fig.add_scatter(
            x=[short(place) for place, _ in points],
            y=[short(loss) for _, loss in points],
            mode="lines" if len(points) > 1 else "markers",
            line={"color": item.colour, "dash": item.dash, "width": 2},
            name=item.tick,
            hovertemplate="loss %{y:.4g} at %{x:.4~g}<extra>%{fullData.name}</extra>",
        )
    caption = f"Each point is the mean of up to {window} steps." if window > 1 else "Each point is one step."
    caption += " The scale of the loss is logarithmic." if steep else ""
    rows = [
        [item.name, f"{points[0][1]:.4g}", f"{points[-1][1]:.4g}", f"{points[-1][0]:,.4g}"] for item, points in curves
    ]
    headings = ("strategy", "first loss", "last loss", "seconds" if key == "loss-time" else "steps")
    return Chart(key, title, caption, fig, len(curves), headings, rows, half=True)


def _windows(places: Sequence[float], losses: Sequence[float | None]) -> list[tuple[float, float]]:
    size = max(1, math.ceil(len(losses) / POINTS))
    points = []
    for start in range(0, len(losses), size):
        known = [loss for loss in losses[start : start + size] if loss is not None]
        if known:
            points.append((places[min(start + size, len(losses)) - 1], fmean(known)))
    return points


def accuracy_chart(shown: Sequence[Series]) -> Chart:
    """Test accuracy after each epoch; with one epoch only, a dot a run."""
    title, key = "Test accuracy after each epoch", "accuracy"
    curves = [(item, points) for item in shown if (points := _accuracies(item))]
    if not curves:
        return Chart(key, title, "No test accuracy was recorded.")
    rows = [[item.name, *(percent(value, 2) for _, value in (points[0], points[-1]))] for item, points in curves]
    headings = ("strategy", "first", "last")
    if all(len(points) == 1 for _, points in curves):
        title = "Test accuracy at the end"
        ends = [100 * points[0][1] for _, points in curves]
        margin = max(0.08 * (max(ends) - min(ends)), 0.1)
        span = [min(ends) - margin, max(ends) + 3 * margin]  # room for the figures beside the marks
        unit = {"title": "test accuracy (%)", "ticksuffix": " %", "range": span}
        fig = rows_figure(title, 36 * len(curves), unit, [item.tick for item, _ in curves], showlegend=False)
        for row, (item, points) in enumerate(curves):
            fig.add_scatter(
                x=[short(100 * points[0][1])],
                y=[row],
                mode="markers+text",
                marker={"color": item.colour, "symbol": item.symbol, "size": 11},
                text=percent(points[0][1], 2),
                textposition="middle right",
                cliponaxis=False,
                name=item.safe,
                hovertemplate="%{x:.2f} %<extra>%{fullData.name}</extra>",
            )
        return Chart(key, title, "The scale does not begin at zero.", fig, headings=headings, rows=rows)
    fig = figure(
        title,
        220,
        {"title": "epochs", "dtick": 1 if max(len(points) for _, points in curves) <= 20 else None},
        {"title": "test accuracy (%)", "ticksuffix": " %"},
    )
    for item, points in curves:
        fig.add_scatter(
            x=[epoch for epoch, _ in points],
            y=[short(100 * value) for _, value in points],
            mode="lines+markers",
            line={"color": item.colour, "dash": item.dash, "width": 2},
            marker={"symbol": item.symbol, "size": 8, "color": item.colour},
            name=item.tick,
            hovertemplate="%{y:.2f} % after epoch %{x}<extra>%{fullData.name}</extra>",
        )
    return Chart(key, title, "The scale does not begin at zero.", fig, len(curves), headings, rows)


def _accuracies(item: Series) -> list[tuple[int, float]]:
    points = [
        (index + 1, value)
        for index, epoch in enumerate(item.run.epochs or [])
        if (value := number(epoch.get("test_accuracy"))) is not None
    ]
    final = accuracy(item.run)
    return points or ([(max(1, len(item.run.epochs or [])), final)] if final is not None else [])


def classes_chart(shown: Sequence[Series]) -> Chart:
    """Test accuracy of every class, one line a run."""
    title, key = "Test accuracy of every class", "classes"
    found = [(item, values) for item in shown if (values := _per_class(item))]
    classes = list(dict.fromkeys(name for _, values in found for name in values))
    if not classes:
        return Chart(key, title, "No run recorded the accuracy of each class.")
    every = len(classes)
    if every > CLASSES:
        hardest = sorted(classes, key=lambda name: min(values.get(name, 1.0) for _, values in found))[:CLASSES]
        classes = [name for name in classes if name in hardest]
    cells = [[values.get(name) for name in classes] for _, values in found]
    fig = heatmap(
        title,
        [item.tick for item, _ in found],
        [escape(name) for name in classes],
        [[None if value is None else short(100 * value) for value in line] for line in cells],
        "class",
        "accuracy (%)",
    )
    low = min(((value, item.name, name) for item, values in found for name, value in values.items()))
    caption = f"Lowest: {percent(low[0], 1)} on class {low[2]} under {low[1]}."
    if every > CLASSES:
        caption += f" Of {every} classes, the {CLASSES} hardest are shown."
    rows = [
        [item.name, *("-" if value is None else percent(value, 1) for value in line)]
        for (item, _), line in zip(found, cells, strict=True)
    ]
    return Chart(key, title, caption, fig, 0, ("strategy", *classes), rows)


def _per_class(item: Series) -> dict[str, float]:
    found = (item.run.test or {}).get("per_class") or {}
    return {str(name): share for name, value in found.items() if (share := number(value)) is not None}


def staleness_chart(shown: Sequence[Series]) -> Chart:
    """How many updates of others came between reading the weights and writing the gradient."""
    title, key = "Staleness of gradients", "staleness"
    found = [(item, counts) for item in shown if sum(counts := _staleness(item)) > 0]
    if not found:
        return Chart(key, title, "No run was asynchronous, so no gradient was stale.")
    values = max(len(counts) for _, counts in found)
    width = max(1, math.ceil(values / BINS))
    fig = figure(
        title,
        220,
        {"title": "staleness (updates by other ranks)", "dtick": max(width, math.ceil(values / TICKS))},
        {"title": "share of gradients (%)", "ticksuffix": " %", "rangemode": "tozero"},
        barmode="group",
        showlegend=True,
    )
    for index, (item, counts) in enumerate(found):
        binned = [sum(counts[start : start + width]) for start in range(0, len(counts), width)]
        fig.add_bar(
            x=[start * width for start in range(len(binned))],
            y=[short(100 * value / sum(counts)) for value in binned],
            marker={
                "color": item.colour,
                "pattern": {
                    "shape": ("", "/", "x", ".", "-", "|")[index % 6],
                    "size": 6,
                    "fgcolor": SURFACE,
                    "fillmode": "overlay",
                },
            },
            name=item.tick,
            hovertemplate="staleness %{x}: %{y:.1f} % of the gradients<extra>%{fullData.name}</extra>",
        )
    rows = [[item.name, *_staleness_text(item)] for item, _ in found]
    means = "; ".join(f"{name} {mean} on average, {most} at most" for name, mean, most in rows)
    caption = f"How many updates of others came between reading the weights and writing the gradient: {means}."
    if width > 1:
        caption += f" Each bar stands for {width} values."
    return Chart(key, title, caption, fig, len(found), ("strategy", "mean", "most"), rows)


def _staleness(item: Series) -> list[float]:
    return [number(value) or 0.0 for value in (item.run.staleness or {}).get("histogram") or []]


def _staleness_text(item: Series) -> tuple[str, str]:
    known = item.run.staleness or {}
    mean, most = number(known.get("mean")), number(known.get("max"))
    return "-" if mean is None else f"{mean:.2f}", "-" if most is None else f"{most:,.0f}"
