"""The inside of a step: how long its phases take, and when every rank is in which of them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

from ..record.run import PHASES, Run
from .chart import (
    MUTED,
    NARROW_LEGEND,
    PATTERNS,
    Chart,
    Drawing,
    Series,
    add_bars,
    chart,
    phase_marker,
    rows_figure,
    short,
)
from .figures import largest_phase, number, percent, phase_times

STEPS = 3  # about so many steps a timeline shows
Phases = dict[str, float]


@chart("phases", "Where a step's time goes", phase_times, "No run recorded the phases of its steps.")
def phases_chart(found: list[tuple[Series, Phases]]) -> Drawing:
    used = [phase for phase in PHASES if any(times[phase] for _, times in found)]
    longest = max(sum(times.values()) for _, times in found)
    x, ticks = {"title": "milliseconds per step"}, [item.tick for item, _ in found]
    fig = rows_figure(40 * len(found), x, ticks, barmode="stack", legend=NARROW_LEGEND)
    for phase in used:
        values = [times[phase] for _, times in found]
        add_bars(
            fig,
            range(len(found)),
            values,
            0.62,
            phase_marker(phase),
            "%{fullData.name}: %{x:.3~g} ms, %{customdata[1]} of the step<extra>%{customdata[0]}</extra>",
            name=phase,
            text=[f"{value:.1f}" if value > longest / 12 and not PATTERNS[phase] else "" for value in values],
            insidetextanchor="middle",
            textangle=0,
            constraintext="none",
            customdata=[[item.safe, percent(times[phase] / sum(times.values()))] for item, times in found],
        )
    hiding = [(row, item, times) for row, (item, times) in enumerate(found) if _hidden(item)]
    if hiding:
        _add_hidden(fig, hiding)
    rows = []
    for item, times in found:
        hidden = number(item.run.overlapped_communication_ms)
        figures = [*(times[phase] for phase in used), sum(times.values())]
        rows.append([item.name, *(f"{value:.2f}" for value in figures), "-" if hidden is None else f"{hidden:.2f}"])
    return Drawing(fig, _phases_caption([item for item, _ in found]), ("strategy", *used, "step", "hidden"), rows)


def _add_hidden(fig: Any, hiding: Sequence[tuple[int, Series, Phases]]) -> None:
    """Hidden communication as a thin bar under the backward it ran behind: it adds nothing to the step."""
    before = PHASES[: PHASES.index("backward")]
    add_bars(
        fig,
        [row + 0.4 for row, _, _ in hiding],
        [_hidden(item) for _, item, _ in hiding],
        0.14,
        phase_marker("communication"),
        "communication behind backward: %{x:.3~g} ms<extra>%{customdata}</extra>",
        base=[short(sum(times[phase] for phase in before)) for _, _, times in hiding],
        name="overlapped",
        customdata=[item.safe for _, item, _ in hiding],
    )


def _hidden(item: Series) -> float:
    return max(0.0, number(item.run.overlapped_communication_ms) or 0.0)


def _phases_caption(shown: Sequence[Series]) -> str:
    strategies = [item for item in shown if item.run.strategy != "single"]
    largest = [f"{item.name} {top[0]} {percent(top[1])}" for item in strategies if (top := largest_phase(item.run))]
    hidden = [f"{item.name} {_hidden(item):.2f} ms" for item in shown if _hidden(item)]
    sampled = {item.name: item.run.phases_source for item in shown if item.run.phases_source not in (None, "measured")}
    caption = [
        "Means over ranks. A step is one batch over all ranks under every strategy, so the bars may be compared."
    ]
    if largest:
        caption.append(f"Largest phase: {'; '.join(largest)}.")
    if hidden:
        thin = "A thin bar is communication hidden behind backward, which costs the step nothing"
        caption.append(f"{thin}: {'; '.join(hidden)}.")
    if sampled:
        sources = "; ".join(sorted(set(map(str, sampled.values()))))
        caption.append(f"Not measured in every step: {', '.join(sampled)} ({sources}).")
    return " ".join(caption)


class Span(NamedTuple):
    """What a rank did for a while; times in milliseconds."""

    rank: int
    step: int
    phase: str
    start: float
    end: float


def timelines(shown: Sequence[Series]) -> list[Chart]:
    """What every rank did, moment by moment, in a few steps: one chart a run, each on its own scale."""
    return [
        Chart(f"timeline-{index + 1}", f"Timeline: {item.name}", "", _timeline(item, spans))
        for index, item in enumerate(shown)
        if (spans := _spans(item.run))
    ] or [Chart("timeline", "Timeline", "No run kept a timeline of its steps.")]


def _spans(run: Run) -> list[Span]:
    """Every span kept, in the order of ranks and times."""
    spans = []
    for entry in run.timeline or []:
        rank, step, start, end = (number(entry.get(key)) for key in ("rank", "step", "start_ms", "end_ms"))
        if rank is not None and step is not None and start is not None and end is not None and end >= start:
            phase = entry.get("phase")
            spans.append(Span(int(rank), int(step), phase if phase in PHASES else "other", start, end))
    return sorted(spans, key=lambda span: (span.rank, span.start))


def _timeline(item: Series, everything: Sequence[Span]) -> Drawing:
    begin, finish = _window(everything)
    spans = [span for span in everything if span.end > begin and span.start < finish]
    ranks = sorted({span.rank for span in spans})
    steps = [span.step for span in spans]
    used = [phase for phase in PHASES if any(span.phase == phase for span in spans)]
    who = {rank: _who(item.run, rank) for rank in ranks}
    x = {"title": "milliseconds", "range": [0, short(finish - begin)]}
    fig = rows_figure(46 * len(ranks), x, list(who.values()), barmode="overlay", legend=NARROW_LEGEND)
    hidden = _behind(spans)
    for phase in used:
        mine = [(span, index in hidden) for index, span in enumerate(spans) if span.phase == phase]
        add_bars(
            fig,
            [ranks.index(span.rank) + (0.33 if thin else 0) for span, thin in mine],
            [min(span.end, finish) - max(span.start, begin) for span, _ in mine],
            [0.16 if thin else 0.46 for _, thin in mine],
            {**phase_marker(phase), "line": {"width": 0}},
            "%{fullData.name}: %{customdata[0]} ms<extra>%{customdata[1]}, step %{customdata[2]}</extra>",
            base=[short(max(span.start, begin) - begin) for span, _ in mine],
            name=phase,  # below, the whole length of a span, also of one that is cut at the edge of the chart
            customdata=[[f"{span.end - span.start:.3g}", who[span.rank], span.step] for span, _ in mine],
        )
    _add_step_marks(fig, everything, ranks, begin, finish)
    caption = f"Steps {min(steps)} to {max(steps)}; a stroke marks where a rank begins a step."
    if hidden:
        caption += " Thin bars ran at the same time as the thick ones above them: overlapped."
    totals = {(rank, phase): 0.0 for rank in ranks for phase in used}
    for span in spans:
        totals[span.rank, span.phase] += span.end - span.start
    rows = [[who[rank], *(f"{totals[rank, phase]:.2f}" for phase in used)] for rank in ranks]
    return Drawing(fig, caption, ("ms in", *used), rows)


def _window(spans: Sequence[Span]) -> tuple[float, float]:
    """A stretch of about `STEPS` steps in which every rank was recorded: ranks that do not wait for each other
    pass the same steps at different times. The last such stretch, where there is any; else everything."""
    ranks = {span.rank for span in spans}
    first = max(min(span.start for span in spans if span.rank == rank) for rank in ranks)
    last = min(max(span.end for span in spans if span.rank == rank) for rank in ranks)
    if last <= first:
        return min(span.start for span in spans), max(span.end for span in spans)
    starts = _step_starts(spans)
    ends = {(span.rank, span.step): span.end for span in spans}  # spans come in the order of time
    begin = max(first, last - STEPS * median(ends[key] - start for key, start in starts.items()))
    return max((start for start in starts.values() if first <= start <= begin), default=begin), last


def _step_starts(spans: Sequence[Span]) -> dict[tuple[int, int], float]:
    starts: dict[tuple[int, int], float] = {}
    for span in spans:
        starts.setdefault((span.rank, span.step), span.start)  # spans come in the order of time
    return starts


def _who(run: Run, rank: int) -> str:
    """Processes beyond the ranks do not train: they serve."""
    ranks = run.ranks or rank + 1
    return f"rank {rank}" if rank < ranks else f"server {rank - ranks}"


def _behind(spans: Sequence[Span]) -> set[int]:
    """Spans that run while their rank does something else too: they get a thin bar of their own.
    Communication gives way to work, since that is what it is hidden behind."""
    order = sorted(range(len(spans)), key=lambda index: (spans[index].phase == "communication", spans[index].start))
    busy: dict[int, list[Span]] = {}
    hidden = set()
    for index in order:
        span = spans[index]
        taken = busy.setdefault(span.rank, [])
        if any(span.start < other.end - 1e-3 and other.start < span.end - 1e-3 for other in taken):
            hidden.add(index)
        else:
            taken.append(span)
    return hidden


def _add_step_marks(fig: Any, spans: Sequence[Span], ranks: Sequence[int], begin: float, finish: float) -> None:
    starts = _step_starts(spans)
    marks = [(rank, step, start) for (rank, step), start in starts.items() if rank in ranks and begin <= start < finish]
    fig.add_scatter(
        x=[short(start - begin) for _, _, start in marks],
        y=[ranks.index(rank) for rank, _, _ in marks],
        mode="markers",
        marker={"symbol": "line-ns", "size": 30, "line": {"color": MUTED, "width": 2}},
        showlegend=False,
        cliponaxis=False,
        customdata=[step for _, step, _ in marks],
        hovertemplate="step %{customdata} begins at %{x:.3~g} ms<extra></extra>",
    )
