"""What training got out of the machine and asked of it: speed, memory of every rank, use of every core and GPU."""

from __future__ import annotations

from html import escape

from ..record.run import Run
from .chart import Drawing, Series, chart
from .figure import NAMED, SURFACE, TEXT, short
from .figures import memory_text, number, speed, speeds, spread
from .row_figure import BAR, Row, add_bars, even_rows, heatmap, rows_figure

RANKS = 8  # so many ranks fit a row of bars; of more, the lowest, the middle and the highest are shown
GAP = 0.8  # between the bars of two runs, in bars


@chart("speed", "Samples per second", speed, "No run has a speed.")
def speed_chart(found: list[tuple[Series, float]]) -> Drawing:
    """Samples per second of every run: the median as a bar, every round as a dot."""
    x = {"title": "samples per second", "rangemode": "tozero", "tickformat": ",~s"}
    fig = rows_figure(even_rows([item for item, _ in found]), 40, x, showlegend=False)
    fastest = max(middle for _, middle in found)
    for row, (item, middle) in enumerate(found):
        rounds, roomy, text = speeds(item.run), middle > fastest / 3, f"<b>{middle:,.0f}</b>"
        inside = {"name": item.safe, "text": [text if roomy else ""]}
        add_bars(fig, [row], [middle], BAR, {"color": item.fill}, "%{x:,.0f} samples/s" + NAMED, **inside)
        fig.add(
            "scatter",
            x=[short(value) for value in rounds],
            y=[row] * len(rounds),
            mode="markers",
            marker={"color": SURFACE, "size": 8, "line": {"color": TEXT, "width": 1.5}},
            name=item.safe,
            hovertemplate="a round: %{x:,.0f} samples/s" + NAMED,
        )
        if not roomy:  # beside the bar and its dots
            beside = short(max([middle, *rounds]))
            fig.annotate(x=beside, y=row, text=text, xanchor="left", xshift=8)
    caption = "Bars in grey are one process. "
    if any(spread(item.run) for item, _ in found):
        caption += "A bar is the median, a dot one round; rows of one comparison took turns in every round."
    else:
        caption += "Each speed was measured once: differences of less than a tenth mean little."
    rows = [
        (item.index, [item.name, f"{middle:,.0f}", ", ".join(f"{value:,.0f}" for value in speeds(item.run)) or "-"])
        for item, middle in found
    ]
    return Drawing(fig, caption, ("strategy", "samples/s", "rounds"), rows)


def _memory(run: Run) -> list[tuple[str, float]]:
    bars = [
        (f"rank {rank.get('rank', index)}", value)
        for index, rank in enumerate(run.per_rank or [])
        if (value := number(rank.get("peak_memory_bytes"))) is not None
    ]
    if len(bars) <= RANKS:
        return bars
    order = sorted(bars, key=lambda bar: bar[1])
    return [order[0], order[len(order) // 2], order[-1]]


@chart("memory", "Peak memory of every rank", _memory, "No run recorded the memory of its ranks.", half=True)
def memory_chart(found: list[tuple[Series, list[tuple[str, float]]]]) -> Drawing:
    """The most memory every rank held: bars side by side, with a gap between runs."""
    bars = [(item, rank, value) for item, ranks in found for rank, value in ranks]
    places: list[float] = []
    rows: list[Row] = []
    for item, ranks in found:
        start = rows[-1].end if rows else 0.0
        rows.append(Row(item, start, start + len(ranks) + GAP, start + GAP / 2 + 0.08))
        places += [start + GAP / 2 + 0.5 + index for index in range(len(ranks))]
    unit, size = ("GiB", 2**30) if max(value for *_, value in bars) >= 2**30 else ("MiB", 2**20)
    fig = rows_figure(rows, 24, {"title": f"memory ({unit})", "rangemode": "tozero"}, showlegend=False)
    add_bars(
        fig,
        places,
        [value / size for *_, value in bars],
        0.84,
        {"color": [item.fill for item, *_ in bars]},
        "%{text}<extra>%{customdata}</extra>",
        text=[f"{escape(rank)}: {memory_text(value)}" for _, rank, value in bars],
        customdata=[item.safe for item, *_ in bars],
    )
    caption = "The most a rank held at any moment of its run; rank 0 evaluates too."
    if any(len(item.run.per_rank) > RANKS for item, _ in found):
        caption += f" Of more than {RANKS} ranks the lowest, the middle and the highest are shown."
    table = [(item.index, [item.name, rank, memory_text(value)]) for item, rank, value in bars]
    return Drawing(fig, caption, ("strategy", "rank", "peak memory"), table)


Device = tuple[str, int, str]  # cores before GPUs, each in the order of its numbers, and its name


def _usage(run: Run) -> dict[Device, float]:
    usage = run.usage or {}
    return {
        (group, len(name := f"{noun} {entry.get(key, index)}"), name): value
        for group, key, noun in (("cores", "core", "core"), ("gpus", "gpu", "GPU"))
        for index, entry in enumerate(usage.get(group) or [])
        if (value := number(entry.get("mean_percent"))) is not None
    }


@chart("usage", "Use of every core and GPU", _usage, "No run recorded the use of cores and GPUs.", half=True)
def usage_chart(found: list[tuple[Series, dict[Device, float]]]) -> Drawing:
    devices = sorted({device for _, use in found for device in use})
    names = [name for *_, name in devices]
    cells = [[use.get(device) for device in devices] for _, use in found]
    fig = heatmap([item for item, _ in found], names, cells, "device", "mean use (%)", span=(0, 100))
    rows = [
        (item.index, [item.name, *("-" if value is None else f"{value:.0f} %" for value in line)])
        for (item, _), line in zip(found, cells, strict=True)
    ]
    caption = "Mean while training; 100 % is a core or a GPU that never rests."
    return Drawing(fig, caption, ("strategy", *names), rows)
