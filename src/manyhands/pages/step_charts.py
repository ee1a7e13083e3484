"""Where a step's time goes: how long each of its phases takes under every run."""

from __future__ import annotations

from collections.abc import Sequence

from ..record.run import PHASES
from .chart import Drawing, Series, chart
from .figure import Figure, legend, short
from .figures import lost_share, number, percent, phase_times
from .row_figure import BAR, PATTERNS, add_bars, even_rows, phase_marker, rows_figure

Phases = dict[str, float]


@chart("phases", "Where a step's time goes", phase_times, "No run recorded the phases of its steps.")
def phases_chart(found: list[tuple[Series, Phases]]) -> Drawing:
    used = [phase for phase in PHASES if any(times[phase] for _, times in found)]
    longest = max(sum(times.values()) for _, times in found)
    digits = 1 if longest >= 2 else 2 if longest >= 0.2 else 3  # steps of a tiny model take hundredths of a millisecond
    rows = even_rows([item for item, _ in found])
    fig = rows_figure(rows, 40, {"title": "milliseconds per step"}, barmode="stack", legend=legend(used))
    for phase in used:
        values = [times[phase] for _, times in found]
        add_bars(
            fig,
            range(len(found)),
            values,
            BAR,
            phase_marker(phase),
            "%{fullData.name}: %{x:.3~g} ms, %{customdata[1]} of the step<extra>%{customdata[0]}</extra>",
            name=phase,
            text=[f"{value:.{digits}f}" if value > longest / 12 and not PATTERNS[phase] else "" for value in values],
            insidetextanchor="middle",
            textangle=0,
            constraintext="none",
            customdata=[[item.safe, percent(times[phase] / sum(times.values()))] for item, times in found],
        )
    hiding = [(row, item, times) for row, (item, times) in enumerate(found) if _hidden(item)]
    if hiding:
        _add_hidden(fig, hiding)
    table = []
    for item, times in found:
        hidden = number(item.run.overlapped_communication_ms)
        figures = [*(times[phase] for phase in used), sum(times.values())]
        cells = [
            *(f"{value:.{digits + 1}f}" for value in figures),
            percent(lost_share(item.run) or 0.0),
            "-" if hidden is None else f"{hidden:.2f}",
        ]
        table.append((item.index, [item.name, *cells]))
    return Drawing(fig, _phases_caption(found), ("strategy", *used, "step", "lost", "hidden"), table)


def _add_hidden(fig: Figure, hiding: Sequence[tuple[int, Series, Phases]]) -> None:
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


def _phases_caption(found: Sequence[tuple[Series, Phases]]) -> str:
    shown = [item for item, _ in found]
    strategies = [(item, times) for item, times in found if item.run.strategy != "single"]
    hidden = [f"{item.name} {_hidden(item):.2f} ms" for item in shown if _hidden(item)]
    sampled = {item.name: item.run.phases_source for item in shown if item.run.phases_source not in (None, "measured")}
    caption = [
        "Means over ranks. A step is one batch over all ranks under every strategy, so the bars may be compared."
    ]
    if len({item.run.batch_size for item in shown}) > 1:
        caption = ["Means over ranks. A step is one batch over all ranks; here batches differ in size."]
    if strategies:
        shares = "; ".join(f"{item.name} {percent(lost_share(item.run) or 0.0)}" for item, times in strategies)
        caption.append(f"Lost to load, communication and wait: {shares}.")
    if hidden:
        thin = "A thin bar is communication hidden behind backward, which costs the step nothing"
        caption.append(f"{thin}: {'; '.join(hidden)}.")
    if sampled:
        sources = "; ".join(sorted(set(map(str, sampled.values()))))
        caption.append(f"Not measured in every step: {', '.join(sampled)} ({sources}).")
    return " ".join(caption)
