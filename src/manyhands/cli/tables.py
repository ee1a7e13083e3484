"""The tables that commands print: a comparison, stored runs, faults, a diagnosis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from ..record.run import Run
from .terminal import console, percent, table

if TYPE_CHECKING:
    from ..pages import Column

ENDLESS = 10_000  # columns: no table is wider
LABEL_WIDTH = 27  # a longer name goes on in the next line
FIRST_TO_GO = (  # if it is narrow
    "threads", "ranks", "hosts", "efficiency", "peak_memory_bytes", "lost_share", "exact", "forecast",
)  # fmt: skip


def show_comparison(runs: Sequence[Run], page: Path, target: float | None) -> None:
    """That the machine was busy, the table, what failed and why, the conclusion, and where the page is."""
    from ..pages import (
        busy_sentence,
        columns,
        comparison_rows,
        conclusion,
        forecast_sentence,
        legend,
        scaling_sentences,
    )  # fmt: skip

    out = console()
    rows = comparison_rows(runs, target)
    wanted = [column for column in columns(rows, target) if column.key != "note"]
    busy = busy_sentence(runs)
    if busy:
        out.print(busy)
        out.print()
    shown, comparison = _fitting(out, wanted, rows)
    out.print(comparison)
    for meaning in legend(shown, rows):
        out.print(meaning)
    left_out = [column.heading for column in wanted if column not in shown]
    if left_out:
        out.print(f"(left out here, in the report: {', '.join(left_out)})")
    if any(column.key == "hosts" for column in wanted):
        _name_hosts(out, runs)
    ordered = sorted(rows, key=lambda row: row["status"] == "done")  # what failed comes before who is slow
    notes = {
        row["note"]: [one["label"] for one in rows if one["note"] == row["note"]] for row in ordered if row["note"]
    }
    for note, labels in notes.items():
        out.print(f"{', '.join(labels)}: {note}")
    out.print()
    said = conclusion(runs)
    out.print(said.removeprefix(f"{busy} "))
    for sentence in scaling_sentences(runs):
        if sentence not in said:
            out.print(sentence)
    if forecasts := forecast_sentence(runs):
        out.print(forecasts)
    out.print(f"report: {page}", soft_wrap=True)


def _fitting(out: Console, wanted: Sequence[Column], rows: Sequence[dict[str, Any]]) -> tuple[Sequence[Column], Table]:
    """The table with as many columns as there is room for."""
    shown, comparison = wanted, _comparison(wanted, rows)
    for key in FIRST_TO_GO:
        if Measurement.get(out, out.options.update(max_width=ENDLESS), comparison).maximum <= out.width:
            break
        shown = [column for column in shown if column.key != key]
        comparison = _comparison(shown, rows)
    return shown, comparison


def _name_hosts(out: Console, runs: Sequence[Run]) -> None:
    from ..pages import hosts, named_hosts

    places = dict.fromkeys(host for run in runs for host in hosts(run) if len(hosts(run)) > 1)
    out.print(f"hosts: {named_hosts(list(places))}")


def _comparison(shown: Sequence[Column], rows: Sequence[dict[str, Any]]) -> Table:
    from ..pages import name_lines

    numbers = [column.heading for column in shown if column.numeric]
    filled = table([column.heading for column in shown], numbers, gap=1)
    for row in rows:
        label = "\n ".join(name_lines(str(row["label"]), LABEL_WIDTH))
        filled.add_row(*(label if column.key == "label" else column.text(row) for column in shown))
    return filled


HEADINGS = ("run", "strategy", "ranks", "status", "samples/s", "accuracy")
NARROWEST = 12  # columns that names of runs need beside the figures


def show_runs(runs: Sequence[Run], root: Path) -> None:
    """Stored runs, one per line, newest first; those of one comparison stand together under its folder.

    Aligned by hand: names that must stay whole to be copied go across all columns, which no table of rich's can do.
    """
    out = console()
    if not runs:
        out.print(f"no runs in {root}")
        return
    paths = [(run.folder or root).relative_to(root) for run in runs]
    entries = [
        (Path(), HEADINGS),
        *((path.parent, _run_cells(run, path)) for run, path in zip(runs, paths, strict=True)),
    ]
    name_width, *widths = (max(map(len, column)) for column in zip(*(cells for _, cells in entries), strict=True))
    room = out.width - sum(widths) - len(widths)
    name_width = min(name_width, room) if room >= NARROWEST else NARROWEST
    above = Path()
    for comparison, (name, *figures) in entries:
        if comparison not in (Path(), above):
            out.print(f"{comparison}/", soft_wrap=True)
        above = comparison
        if len(name) > name_width:
            out.print(name, soft_wrap=True)
            name = ""
        aligned = [f"{cell:{side}{width}}" for cell, side, width in zip(figures, "<><>>", widths, strict=True)]
        out.print(" ".join([f"{name:<{name_width}}", *aligned]), soft_wrap=True)


def _run_cells(run: Run, path: Path) -> tuple[str, ...]:
    known = (run.test or {}).get("accuracy")
    return (
        f"{'' if path.parent == Path() else '  '}{path.name}",
        run.label if len(run.label) <= LABEL_WIDTH else f"{run.strategy}:…",  # the folder's name tells the rest
        str(run.ranks),
        run.status,
        f"{run.samples_per_second:,.0f}" if run.samples_per_second else "-",
        percent(known) if known is not None else "-",
    )


def show_faults(results: Sequence[Mapping[str, Any]]) -> None:
    """What every fault did, one per line, however long."""
    from ..studies.chaos import KEYS

    filled = table((*KEYS[:5], "noticed", "resumed", "repeated", "lost", "doubled", "equal", "left behind"))
    for result in results:
        filled.add_row(*(_fault_text(result[key]) for key in KEYS))
    console(ENDLESS).print(filled)


def _fault_text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "nothing"
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.2f} s" if isinstance(value, float) else str(value)


def show_diagnosis(result: Mapping[str, Any]) -> None:
    """What was tried with its gain, what was not and why, the verdict, and what to type."""
    out = console()
    if result["experiments"]:
        shown = table(
            ["one thing changed", "step ms", "speed-up", "over rounds"], ["step ms", "speed-up", "over rounds"]
        )
        for one in result["experiments"]:
            low, high = one["interval"]
            shown.add_row(one["change"], f"{one['step_ms']:.2f}", f"{one['speedup']:.2f}x", f"{low:.2f} to {high:.2f}")
        out.print(shown)
    for one in result["not_tried"]:
        out.print(f"not tried: {one['change']} ({one['reason']})")
    out.print()
    out.print(result["verdict"])
    for one in result["advice"]:
        gain = f"{one['speedup']:.1f}x" if one["speedup"] else "try"
        out.print(f"{gain:>5}  {one['command']}", soft_wrap=True)
    if result.get("applied"):
        applied = result["applied"]
        out.print(
            f"Applied: {applied['change']} made the job {applied['speedup']:.1f}x faster (promised: {applied['promised']:.1f}x)."
        )
