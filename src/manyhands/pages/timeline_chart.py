"""What every rank did, moment by moment, in a few steps of every run: all of them on one scale."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from ..record.run import PHASES, Run
from .chart import Chart, Drawing, Series
from .figure import MUTED, Figure, legend, short
from .figures import number
from .row_figure import Row, add_bars, phase_marker, rows_figure
from .scaling import scalings

STEPS = 3  # about so many steps of a run are shown
RANKS = 8  # so many ranks of a run have room
HEAD = 0.8  # room for a run's name above its ranks, in rows
UNIT = 30  # pixels of a row
MISSING = "No run kept a timeline of its steps."


class Span(NamedTuple):
    """What a rank did for a while; times in milliseconds."""

    rank: int
    step: int
    phase: str
    start: float
    end: float


class Excerpt(NamedTuple):
    """A few steps of a run, and the place of each of its ranks in the chart."""

    item: Series
    everything: Sequence[Span]
    begin: float
    finish: float
    places: dict[int, float]

    def who(self, rank: int) -> str:
        """Processes beyond the ranks do not train: they serve."""
        ranks = self.item.run.ranks or rank + 1
        return f"rank {rank}" if rank < ranks else f"server {rank - ranks}"


def timeline_chart(shown: Sequence[Series]) -> Chart:
    """One chart of all runs; of a strategy with several numbers of ranks, the run with the most."""
    found = scalings([item.run for item in shown])
    fewer = {id(run) for one in found for run in one.runs[:-1]}
    excerpts: list[Excerpt] = []
    rows: list[Row] = []
    for item in shown:
        spans = _spans(item.run) if id(item.run) not in fewer else []
        if spans:
            start = rows[-1].end if rows else 0.0
            ranks = _chosen(item.run, sorted({span.rank for span in spans}))
            places = {rank: start + HEAD + 0.5 + index for index, rank in enumerate(ranks)}
            rows.append(Row(item, start, start + HEAD + len(ranks), start + HEAD))
            excerpts.append(Excerpt(item, spans, *_window(spans), places))
    return Chart("timeline", "Timeline of every rank", MISSING, _draw(excerpts, rows) if rows else None)


def _chosen(run: Run, ranks: Sequence[int]) -> list[int]:
    """The ranks that have room: of many, some at equal distances, and the slow one."""
    if len(ranks) <= RANKS:
        return list(ranks)
    picked = {ranks[index * (len(ranks) - 1) // (RANKS - 1)] for index in range(RANKS)}
    return sorted(picked | {rank for rank in ranks if rank == (run.slow_rank or {}).get("rank")})


def _draw(excerpts: Sequence[Excerpt], rows: Sequence[Row]) -> Drawing:
    bars = [bar for one in excerpts for bar in _bars(one)]
    used = [phase for phase in PHASES if any(bar.span.phase == phase for bar in bars)]
    x = {"title": "milliseconds", "rangemode": "tozero"}
    fig = rows_figure(rows, UNIT, x, barmode="overlay", legend=legend(used))
    fig.layout["meta"]["above"] = True  # the names of runs stand above their ranks on wide screens too
    ranks = [(place, one.who(rank)) for one in excerpts for rank, place in one.places.items()]
    fig.layout["yaxis"] |= {"tickvals": [place for place, _ in ranks], "ticktext": [who for _, who in ranks]}
    for phase in used:
        _add_spans(fig, phase, [bar for bar in bars if bar.span.phase == phase])
    _add_step_marks(fig, excerpts)
    headings = ("strategy", "rank", *(f"{phase} (ms)" for phase in used))
    return Drawing(fig, _caption(excerpts, bars), headings, _table(bars, used))


class Bar(NamedTuple):
    """A span as it is drawn: thin where its rank does something else at the same time."""

    one: Excerpt
    span: Span
    thin: bool


def _bars(one: Excerpt) -> list[Bar]:
    spans = [
        span for span in one.everything if span.end > one.begin and span.start < one.finish and span.rank in one.places
    ]
    hidden = _behind(spans)
    return [Bar(one, span, index in hidden) for index, span in enumerate(spans)]


def _add_spans(fig: Figure, phase: str, bars: Sequence[Bar]) -> None:
    """The bars of a phase under all runs."""
    add_bars(
        fig,
        [one.places[span.rank] + (0.33 if thin else 0) for one, span, thin in bars],
        [min(span.end, one.finish) - max(span.start, one.begin) for one, span, _ in bars],
        [0.16 if thin else 0.46 for *_, thin in bars],
        {**phase_marker(phase), "line": {"width": 0}},
        "%{fullData.name}: %{customdata[0]} ms<extra>%{customdata[1]}, step %{customdata[2]}</extra>",
        base=[short(max(span.start, one.begin) - one.begin) for one, span, _ in bars],
        name=phase,  # below, the whole length of a span, also of one that is cut at the edge of the excerpt
        customdata=[
            [f"{span.end - span.start:.3g}", f"{one.item.safe}, {one.who(span.rank)}", span.step]
            for one, span, _ in bars
        ],
    )


def _add_step_marks(fig: Figure, excerpts: Sequence[Excerpt]) -> None:
    marks = [
        (start - one.begin, one.places[rank], step)
        for one in excerpts
        for (rank, step), start in _step_starts(one.everything).items()
        if rank in one.places and one.begin <= start < one.finish
    ]
    fig.add(
        "scatter",
        x=[short(start) for start, _, _ in marks],
        y=[place for _, place, _ in marks],
        mode="markers",
        marker={"symbol": "line-ns", "size": 20, "line": {"color": MUTED, "width": 2}},
        showlegend=False,
        cliponaxis=False,
        customdata=[step for *_, step in marks],
        hovertemplate="step %{customdata} begins at %{x:.3~g} ms<extra></extra>",
    )


def _caption(excerpts: Sequence[Excerpt], bars: Sequence[Bar]) -> str:
    parts = [f"About {STEPS} steps of every run from the same start, on one scale."] if len(excerpts) > 1 else []
    parts.append("A stroke marks where a rank begins a step.")
    if any(bar.thin for bar in bars):
        parts.append("Thin bars ran at the same time as the thick ones above them: overlapped.")
    if any(len(one.places) < len({span.rank for span in one.everything}) for one in excerpts):
        parts.append(f"Of more than {RANKS} ranks only some are shown, a slow one among them.")
    return " ".join(parts)


def _table(bars: Sequence[Bar], used: Sequence[str]) -> list[tuple[int, list[str]]]:
    """Milliseconds of every rank in every phase."""
    totals: dict[tuple[int, str, str], dict[str, float]] = {}
    for one, span, _ in bars:
        key = one.item.index, one.item.name, one.who(span.rank)
        totals.setdefault(key, dict.fromkeys(used, 0.0))[span.phase] += span.end - span.start
    return [
        (run, [name, who, *(f"{times[phase]:.2f}" for phase in used)]) for (run, name, who), times in totals.items()
    ]


def _spans(run: Run) -> list[Span]:
    """Every span kept, in the order of ranks and times."""
    spans = []
    for entry in run.timeline or []:
        rank, step, start, end = (number(entry.get(key)) for key in ("rank", "step", "start_ms", "end_ms"))
        if rank is not None and step is not None and start is not None and end is not None and end >= start:
            phase = entry.get("phase")
            spans.append(Span(int(rank), int(step), phase if phase in PHASES else "other", start, end))
    return sorted(spans, key=lambda span: (span.rank, span.start))


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
    known = [start for start in starts.values() if first <= start < last]
    return min(known, key=lambda start: abs(start - begin), default=begin), last


def _step_starts(spans: Sequence[Span]) -> dict[tuple[int, int], float]:
    starts: dict[tuple[int, int], float] = {}
    for span in spans:
        starts.setdefault((span.rank, span.step), span.start)  # spans come in the order of time
    return starts


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
