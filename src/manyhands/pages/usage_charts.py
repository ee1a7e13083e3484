"""What training asked of the machine: memory of every rank, use of every core and GPU."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from .canvas import Chart, Series, heatmap, rows_figure, short
from .figures import memory_text, number

RANKS = 8  # so many ranks fit a row of bars; of more, the lowest, the middle and the highest are shown
GAP = 0.8  # between the bars of two runs, in bars


def memory_chart(shown: Sequence[Series]) -> Chart:
    """The most memory every rank held."""
    title, key = "Peak memory of every rank", "memory"
    found = [(item, bars) for item in shown if (bars := _memory(item))]
    if not found:
        return Chart(key, title, "No run recorded the memory of its ranks.", half=True)
    places, middles, tops, labels, values, fills, hover = [], [], [], [], [], [], []
    place = 0.0
    for item, bars in found:
        tops.append(place - 0.42)
        middles.append(place + (len(bars) - 1) / 2)
        for label, value in bars:
            places.append(place)
            labels.append(f"{escape(label)}: {memory_text(value)}")
            values.append(value)
            fills.append("var(--baseline)" if item.run.strategy == "single" else "var(--accent)")
            hover.append(item.safe)
            place += 1
        place += GAP
    unit, size = ("GiB", 2**30) if max(values) >= 2**30 else ("MiB", 2**20)
    fig = rows_figure(
        title,
        int(24 * place),
        {"title": f"memory ({unit})", "rangemode": "tozero"},
        [item.tick for item, _ in found],
        middles,
        tops,
        showlegend=False,
    )
    fig.update_yaxes(range=[place - GAP - 0.3, -1.0])
    fig.add_bar(
        x=[short(value / size) for value in values],
        y=places,
        orientation="h",
        width=0.84,
        marker={"color": fills},
        text=labels,
        textposition="inside",
        insidetextanchor="start",
        textfont={"color": "var(--surface)"},
        customdata=hover,
        hovertemplate="%{text}<extra>%{customdata}</extra>",
    )
    caption = "The most a rank held at any moment of its run; rank 0 evaluates too."
    if any(len(item.run.per_rank or []) > RANKS for item, _ in found):
        caption += f" Of more than {RANKS} ranks the lowest, the middle and the highest are shown."
    rows = [[item.name, label, memory_text(value)] for item, bars in found for label, value in bars]
    return Chart(key, title, caption, fig, 0, ("strategy", "rank", "peak memory"), rows, half=True)


def _memory(item: Series) -> list[tuple[str, float]]:
    bars = [
        (f"rank {rank.get('rank', index)}", value)
        for index, rank in enumerate(item.run.per_rank or [])
        if (value := number(rank.get("peak_memory_bytes"))) is not None
    ]
    if len(bars) <= RANKS:
        return bars
    order = sorted(bars, key=lambda bar: bar[1])
    return [order[0], order[len(order) // 2], order[-1]]


def usage_chart(shown: Sequence[Series]) -> Chart:
    """Mean use of every core and GPU while a run trained."""
    title, key = "Use of every core and GPU", "usage"
    found = [(item, use) for item in shown if (use := _usage(item))]
    devices = list(dict.fromkeys(device for _, use in found for device in use))
    if not devices:
        return Chart(key, title, "No run recorded the use of cores and GPUs.", half=True)
    devices.sort(key=lambda device: (device.startswith("GPU"), len(device), device))
    cells = [[short(use[device]) if device in use else None for device in devices] for _, use in found]
    fig = heatmap(title, [item.tick for item, _ in found], devices, cells, "device", "mean use (%)", span=(0, 100))
    rows = [
        [item.name, *(f"{use[device]:.0f} %" if device in use else "-" for device in devices)] for item, use in found
    ]
    caption = "Mean while training; 100 % is a core or a GPU that never rests."
    return Chart(key, title, caption, fig, 0, ("strategy", *devices), rows, half=True)


def _usage(item: Series) -> dict[str, float]:
    usage = item.run.usage or {}
    return {
        f"{noun} {entry.get(key, index)}": value
        for group, key, noun in (("cores", "core", "core"), ("gpus", "gpu", "GPU"))
        for index, entry in enumerate(usage.get(group) or [])
        if (value := number(entry.get("mean_percent"))) is not None
    }
