"""The inside of a step: how long its phases take, and when every rank is in which of them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from ..record.run import PHASES
from .canvas import LEGEND, MUTED, PATTERNS, SURFACE, Chart, Series, phase_marker, rows_figure, short
from .figures import largest_phase, number, percent, phase_times

OVERLAPPED = "overlapped"
STEPS = 3  # about so many steps a timeline shows


def phases_chart(shown: Sequence[Series]) -> Chart:
    """Where a step's time goes: the phases of every run, stacked."""
    title, key = "Where a step's time goes", "phases"
    runs = [(item, times) for item in shown if sum((times := phase_times(item.run.phases_ms)).values()) > 0]
    if not runs:
        return Chart(key, title, "No run recorded the phases of its steps.")
    used = [phase for phase in PHASES if any(times[phase] for _, times in runs)]
    longest = max(sum(times.values()) for _, times in runs)
    fig = rows_figure(
        title,
        40 * len(runs),
        {"title": "milliseconds per step"},
        [item.tick for item, _ in runs],
        barmode="stack",
        legend={**LEGEND, "entrywidth": 90},
    )
    for phase in used:
        values = [times[phase] for _, times in runs]
        fig.add_bar(
            x=[short(value) for value in values],
            y=list(range(len(runs))),
            orientation="h",
            width=0.62,
            marker=phase_marker(phase),
            text=[f"{value:.1f}" if value > longest / 12 and not _hatched(phase) else "" for value in values],
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            constraintext="none",
            textfont={"color": SURFACE},
            name=phase,
            customdata=[[item.safe, percent(times[phase] / sum(times.values()))] for item, times in runs],
            hovertemplate="%{fullData.name}: %{x:.3~g} ms, %{customdata[1]} of the step<extra>%{customdata[0]}</extra>",
        )
    if any(_hidden(item) for item, _ in runs):
        fig.add_bar(**_overlapped(runs))
    rows = [
        [item.name, *(f"{times[phase]:.2f}" for phase in used), f"{sum(times.values()):.2f}", _hidden_text(item)]
        for item, times in runs
    ]
    headings = ("strategy", *used, "step", "hidden")
    return Chart(key, title, _phases_caption([item for item, _ in runs]), fig, len(fig.data), headings, rows)


def _overlapped(runs: Sequence[tuple[Series, dict[str, float]]]) -> dict[str, Any]:
    """Hidden communication as a thin bar under the backward it ran behind: it adds nothing to the step."""
    rows = [(row, item, times) for row, (item, times) in enumerate(runs) if _hidden(item)]
    before = PHASES[: PHASES.index("backward")]
    return {
        "x": [short(_hidden(item)) for _, item, _ in rows],
        "y": [row + 0.4 for row, _, _ in rows],
        "base": [short(sum(times[phase] for phase in before)) for _, _, times in rows],
        "orientation": "h",
        "width": 0.14,
        "marker": phase_marker("communication"),
        "name": OVERLAPPED,
        "customdata": [item.safe for _, item, _ in rows],
        "hovertemplate": "communication behind backward: %{x:.3~g} ms<extra>%{customdata}</extra>",
    }


def _hidden(item: Series) -> float:
    return max(0.0, number(item.run.overlapped_communication_ms) or 0.0)


def _phases_caption(shown: Sequence[Series]) -> str:
    parts = []
    for item in shown:
        largest = largest_phase(item.run)
        if largest and item.run.strategy != "single":
            parts.append(f"{item.name} {largest[0]} {percent(largest[1])}")
    caption = "Means over ranks. A step is one batch over all ranks under every strategy, so the bars may be compared. "
    if parts:
        caption += f"Largest phase: {'; '.join(parts)}. "
    hidden = [f"{item.name} {_hidden(item):.2f} ms" for item in shown if _hidden(item)]
    if hidden:
        caption += (
            f"A thin bar is communication hidden behind backward, which costs the step nothing: {'; '.join(hidden)}. "
        )
    sampled = [item.name for item in shown if item.run.phases_source not in (None, "measured")]
    if sampled:
        sources = {str(item.run.phases_source) for item in shown if item.name in sampled}
        caption += f"Not measured in every step: {', '.join(sampled)} ({'; '.join(sorted(sources))}). "
    return caption.strip()


def _hidden_text(item: Series) -> str:
    value = number(item.run.overlapped_communication_ms)
    return f"{value:.2f}" if value is not None else "-"


def _hatched(phase: str) -> bool:
    return bool(PATTERNS[PHASES.index(phase)])


def timelines(shown: Sequence[Series]) -> list[Chart]:
    """What every rank did, moment by moment, in a few steps: one chart a run, each on its own scale."""
    found = [(index, item, spans) for index, item in enumerate(shown) if (spans := _spans(item))]
    if not found:
        return [Chart("timeline", "Timeline", "No run kept a timeline of its steps.")]
    return [_timeline(f"timeline-{index + 1}", item, spans) for index, item, spans in found]


Span = tuple[int, int, str, float, float]  # rank, step, phase, start and end in milliseconds


def _spans(item: Series) -> list[Span]:
    """Every span kept, in the order of ranks and times."""
    spans: list[Span] = []
    for entry in item.run.timeline or []:
        rank, step = number(entry.get("rank")), number(entry.get("step"))
        start, end = number(entry.get("start_ms")), number(entry.get("end_ms"))
        if rank is None or step is None or start is None or end is None or end < start:
            continue
        phase = entry.get("phase")
        spans.append((int(rank), int(step), phase if phase in PHASES else "other", start, end))
    return sorted(spans, key=lambda span: (span[0], span[3]))


def _step_starts(spans: Sequence[Span]) -> dict[tuple[int, int], float]:
    starts: dict[tuple[int, int], float] = {}
    for rank, step, _, start, _ in spans:
        starts[rank, step] = min(start, starts.get((rank, step), start))
    return starts


def _window(spans: Sequence[Span]) -> tuple[float, float]:
    """A stretch of about `STEPS` steps in which every rank was recorded: ranks that do not wait for each other
    pass the same steps at different times. The last such stretch, where there is any; else everything."""
    ranks = {rank for rank, *_ in spans}
    first = max(min(start for rank, _, _, start, _ in spans if rank == one) for one in ranks)
    last = min(max(end for rank, _, _, _, end in spans if rank == one) for one in ranks)
    if last <= first:
        return min(span[3] for span in spans), max(span[4] for span in spans)
    starts = sorted(_step_starts(spans).values())
    ends = {(rank, step): end for rank, step, _, _, end in spans}  # spans come in the order of time
    length = STEPS * median(ends[key] - start for key, start in _step_starts(spans).items())
    begin = max(first, last - length)
    return max((start for start in starts if first <= start <= begin), default=begin), last


def _timeline(key: str, item: Series, everything: Sequence[Span]) -> Chart:
    begin, finish = _window(everything)
    spans = [span for span in everything if span[4] > begin and span[3] < finish]
    ranks = sorted({rank for rank, *_ in spans})
    steps = sorted({step for _, step, *_ in spans})
    used = [phase for phase in PHASES if any(span[2] == phase for span in spans)]
    title = f"Timeline: {item.name}"
    fig = rows_figure(
        title,
        46 * len(ranks),
        {"title": "milliseconds", "range": [0, short(finish - begin)]},
        [_who(item, rank) for rank in ranks],
        tops=[place - 0.31 for place in range(len(ranks))],
        barmode="overlay",
        legend={**LEGEND, "entrywidth": 90},
    )
    hidden = _behind(spans)
    for phase in used:
        mine = [index for index, span in enumerate(spans) if span[2] == phase]
        fig.add_bar(
            base=[short(max(spans[index][3], begin) - begin) for index in mine],
            x=[short(min(spans[index][4], finish) - max(spans[index][3], begin)) for index in mine],
            y=[ranks.index(spans[index][0]) + (0.33 if index in hidden else 0) for index in mine],
            width=[0.16 if index in hidden else 0.46 for index in mine],
            orientation="h",
            marker={**phase_marker(phase), "line": {"width": 0}},
            name=phase,
            customdata=[_hover(item, spans[index]) for index in mine],
            hovertemplate="%{fullData.name}: %{customdata[0]} ms<extra>%{customdata[1]}, step %{customdata[2]}</extra>",
        )
    fig.add_scatter(**_step_marks(everything, ranks, begin, finish))
    caption = f"Steps {steps[0]} to {steps[-1]}; a stroke marks where a rank begins a step."
    if hidden:
        caption += " Thin bars ran at the same time as the thick ones above them: overlapped."
    totals = {
        rank: {phase: sum(end - start for r, _, p, start, end in spans if (r, p) == (rank, phase)) for phase in used}
        for rank in ranks
    }
    rows = [[_who(item, rank), *(f"{totals[rank][phase]:.2f}" for phase in used)] for rank in ranks]
    return Chart(key, title, caption, fig, len(used), ("ms in", *used), rows)


def _hover(item: Series, span: Span) -> list[Any]:
    """The whole length of a span, also of one that is cut at the edge of the chart."""
    rank, step, _, start, end = span
    return [f"{end - start:.3g}", _who(item, rank), step]


def _who(item: Series, rank: int) -> str:
    """Processes beyond the ranks do not train: they serve."""
    ranks = item.run.ranks or rank + 1
    return f"rank {rank}" if rank < ranks else f"server {rank - ranks}"


def _behind(spans: Sequence[Span]) -> set[int]:
    """Spans that run while their rank does something else too: they get a thin bar of their own.
    Communication gives way to work, since that is what it is hidden behind."""
    order = sorted(range(len(spans)), key=lambda index: (spans[index][2] == "communication", spans[index][3]))
    busy: dict[int, list[tuple[float, float]]] = {}
    hidden = set()
    for index in order:
        rank, _, _, start, end = spans[index]
        taken = busy.setdefault(rank, [])
        if any(start < other_end - 1e-3 and other_start < end - 1e-3 for other_start, other_end in taken):
            hidden.add(index)
        else:
            taken.append((start, end))
    return hidden


def _step_marks(spans: Sequence[Span], ranks: Sequence[int], begin: float, finish: float) -> dict[str, Any]:
    begins = _step_starts(spans)
    marks = [(rank, step, start) for (rank, step), start in begins.items() if rank in ranks and begin <= start < finish]
    return {
        "x": [short(start - begin) for _, _, start in marks],
        "y": [ranks.index(rank) for rank, _, _ in marks],
        "mode": "markers",
        "marker": {"symbol": "line-ns", "size": 30, "line": {"color": MUTED, "width": 2}},
        "showlegend": False,
        "cliponaxis": False,
        "customdata": [step for _, step, _ in marks],
        "hovertemplate": "step %{customdata} begins at %{x:.3~g} ms<extra></extra>",
    }
