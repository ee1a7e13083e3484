"""What commands print: short, in words, within 80 columns where a table allows it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..record.run import PHASES, Run
from ..record.slow_rank import slow_one
from ..record.untrusted import plain

if TYPE_CHECKING:
    from ..pages import Column
    from ..strategies.contract import Strategy
    from ..task import Task

WIDEST = 100


class PlainConsole(Console):
    """Prints what it is given and nothing that a terminal would obey: names and reasons come from files."""

    def render_str(self, text: str, **keywords: Any) -> Text:
        return super().render_str(plain(text), **keywords)


def console() -> Console:
    width = min(WIDEST, shutil.get_terminal_size((WIDEST, 24)).columns)
    return PlainConsole(width=width, highlight=False, markup=False, soft_wrap=False)


def show_run(run: Run) -> None:
    """One fit: how fast, how good, where the time of a step went."""
    out = console()
    ranks = f"{run.ranks} rank{'s' * (run.ranks != 1)}"
    threads = f", {run.threads} thread{'s' * (run.threads != 1)} each" if run.threads else ""
    out.print(f"{run.task} · {run.label} · {ranks} on {run.device}{threads}")
    if run.status != "done":
        out.print(f"  {run.status}: {run.reason}")
    if run.steps and run.seconds and run.step_ms:
        rate = f"{run.samples_per_second:,.0f} samples/s" if run.samples_per_second else ""
        median = figure(run.step_ms.get("median"), ".2f")
        out.print(f"  {run.steps:,} steps in {run.seconds:.1f} s: {rate}, median step {median} ms")
    if run.test:
        known = run.test.get("accuracy")
        accuracy = f"accuracy {percent(known)}, " if known is not None else ""
        loss, samples = figure(run.test.get("loss"), ".4f"), figure(run.test.get("samples"), ",")
        out.print(f"  test: {accuracy}loss {loss} over {samples} samples")
    if run.phases_ms:
        _show_phases(out, run.phases_ms)
    if run.communication_bytes:
        hidden = run.overlapped_communication_ms or 0.0
        overlap = f"; {hidden:.2f} ms of it hidden behind backward" if hidden >= 0.005 else ""
        out.print(f"  {run.communication_bytes / 1e6:.3f} MB communicated per step{overlap}")
    if run.staleness:
        mean, most = figure(run.staleness.get("mean"), ".2f"), run.staleness.get("max")
        out.print(f"  staleness: mean {mean}, at most {most} updates by others")
    if run.slow_rank:
        slow = run.slow_rank
        behind = figure(slow.get("behind_ms"), ".1f")
        out.print(f"  {slow_one(slow)} is slow in {slow.get('phase')} ({behind} ms per step behind)")
    if run.exact is False and run.exact_reason:
        out.print(f"  not exact: {run.exact_reason}")
    for note in run.notes:
        out.print(f"  note: {note}")
    if run.folder is not None:
        out.print(f"  kept in {run.folder}")


def _show_phases(out: Console, phases: Mapping[str, float]) -> None:
    total = sum(phases.values()) or 1.0
    shown = [(name, phases.get(name, 0.0)) for name in PHASES if phases.get(name, 0.0) >= 0.005 * total]
    out.print(f"  where the {total:.2f} ms of a step go:")
    for name, value in shown:
        share = value / total
        out.print(
            f"    {name:<13} {value:8.2f} ms  {100 * share:5.1f} %  {'█' * round(30 * min(1.0, max(0.0, share)))}"
        )


LABEL_WIDTH = 27  # a longer name goes on in the next line
FIRST_TO_GO = ("threads", "ranks", "efficiency", "peak_memory_bytes", "largest_phase")  # in a narrow terminal


def show_comparison(runs: Sequence[Run], page: Path, target: float | None) -> None:
    """The table of a comparison, what failed and why, the conclusion, and where the page is."""
    from ..pages import columns, conclusion, table

    out = console()
    rows = table(runs, target)
    wanted = [column for column in columns(rows, target) if column.key != "note"]
    shown = _that_fit(wanted, rows, out.width)
    grid = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for column in shown:
        grid.add_column(column.heading, justify="right" if column.numeric else "left", no_wrap=True)
    for row in rows:
        grid.add_row(*_cells(row, shown))
    out.print(grid)
    left_out = [column.heading for column in wanted if column not in shown]
    if left_out:
        out.print(f"(left out here, in the report: {', '.join(left_out)})")
    for row in rows:
        if row["note"]:
            out.print(f"{row['label']}: {row['note']}")
    out.print()
    out.print(conclusion(runs))
    out.print(f"report: {page}", soft_wrap=True)


def _cells(row: dict[str, Any], shown: Sequence[Column]) -> list[str]:
    from ..pages import name_lines

    lines = "\n ".join(name_lines(str(row["label"]), LABEL_WIDTH))
    return [lines if column.key == "label" else column.text(row) for column in shown]


def _that_fit(wanted: Sequence[Column], rows: Sequence[dict[str, Any]], width: int) -> list[Column]:
    """The columns for which there is room; what a narrow terminal leaves out is in the report."""
    shown = list(wanted)
    for key in FIRST_TO_GO:
        cells = [[column.heading for column in shown], *(_cells(row, shown) for row in rows)]
        needed = [max(len(line) for cell in column for line in cell.split("\n")) for column in zip(*cells, strict=True)]
        if sum(needed) + len(needed) - 1 <= width:
            break
        shown = [column for column in shown if column.key != key]
    return shown


HEADINGS = ("run", "strategy", "ranks", "status", "samples/s", "accuracy")
NARROWEST = 12  # columns that names of runs need beside the figures


def show_runs(runs: Sequence[Run], root: Path) -> None:
    """Stored runs, one a line, newest first; those of one comparison stand together under its folder."""
    out = console()
    if not runs:
        out.print(f"no runs in {root}")
        return
    entries = [(None, HEADINGS), *((_comparison(run, root), _run_cells(run, root)) for run in runs)]
    name_width, *widths = (max(map(len, column)) for column in zip(*(cells for _, cells in entries), strict=True))
    room = out.width - sum(widths) - len(widths)
    name_width = min(name_width, room) if room >= NARROWEST else NARROWEST
    above: Path | None = None
    for folder, (name, *figures) in entries:
        if folder is not None and folder != above:
            out.print(f"{folder}/", soft_wrap=True)
        above = folder
        if len(name) > name_width:  # a line of its own, so that it can be copied whole
            out.print(name, soft_wrap=True)
            name = ""
        aligned = [f"{cell:{side}{width}}" for cell, side, width in zip(figures, "<><>>", widths, strict=True)]
        out.print(" ".join([f"{name:<{name_width}}", *aligned]), soft_wrap=True)


def _comparison(run: Run, root: Path) -> Path | None:
    """The folder, below `root`, of the comparison that a run belongs to."""
    assert run.folder is not None
    parent = run.folder.relative_to(root).parent
    return None if parent == Path() else parent


def _run_cells(run: Run, root: Path) -> tuple[str, ...]:
    assert run.folder is not None
    name = f"  {run.folder.name}" if _comparison(run, root) else run.folder.name
    known = (run.test or {}).get("accuracy")
    return (
        name,
        run.label if len(run.label) <= LABEL_WIDTH else f"{run.strategy}:…",  # the folder's name tells the rest
        str(run.ranks),
        run.status,
        f"{run.samples_per_second:,.0f}" if run.samples_per_second else "-",
        percent(known) if known is not None else "-",
    )


def show_evaluation(run: Run, result: Mapping[str, Any]) -> None:
    out = console()
    out.print(f"{run.task} · {run.label}: {result['samples']:,} test samples, loss {result['loss']:.4f}")
    if result.get("accuracy") is not None:
        out.print(f"  accuracy {percent(result['accuracy'])}")
    for name, value in result.get("per_class", {}).items():
        out.print(f"    class {name:<12} {percent(value)}")


def show_list(entries: Mapping[str, str], as_json: bool) -> None:
    if as_json:
        print(json.dumps(dict(entries), indent=1))
        return
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    for name, line in entries.items():
        grid.add_row(name, line)
    console().print(grid)


def show_strategies(strategies: Sequence[Strategy], as_json: bool) -> None:
    """What each does and whether it is exact; where it runs, if the terminal is wide enough."""
    if as_json:
        rows = [
            {"name": s.name, "exact": s.traits.exact is True, "runs_on": s.traits.runs_on, "summary": s.summary}
            for s in strategies
        ]
        print(json.dumps(rows, indent=1))
        return
    out = console()
    headings = ["strategy", "exact", "what it does", "where it runs"][: 4 if out.width >= WIDEST else 3]
    grid = Table(box=None, pad_edge=False, padding=(0, 1))
    for heading in headings:
        grid.add_column(heading, no_wrap=heading in ("strategy", "exact"))
    for s in strategies:
        row = s.name, "yes" if s.traits.exact is True else "no", s.summary, s.traits.runs_on
        grid.add_row(*row[: len(headings)])
    out.print(grid)
    out.print("exact: promises the weights that one process would train")
    if len(headings) < 4:
        out.print(f"where each runs: in {WIDEST} columns, or with --json")


def figure(value: float | None, form: str) -> str:
    """A number, or a dash where it is not known."""
    return "-" if value is None else format(value, form)


def percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def write_sample(task: Task, run: Run, length: int) -> str:
    """Text written by the trained model."""
    from ..strategies.job import StepSettings
    from ..training.build import build
    from ..training.evaluate import with_weights

    assert run.weights is not None
    assert task.sample is not None
    model = with_weights(build(task, StepSettings()).model, run.weights).eval()
    return task.sample(model, length)
