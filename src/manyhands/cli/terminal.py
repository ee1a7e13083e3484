"""What commands print about one run: short, in words, within 80 columns. Tables are made here too (tables.py fills them)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..record.evaluation import in_words, metrics_of
from ..record.run import PHASES, Run
from ..record.untrusted import plain
from .document import write_document

WIDEST = 100
BAR = 30  # blocks for a phase that takes the whole step


class PlainConsole(Console):
    """Prints what it is given and nothing that a terminal would obey: names and reasons come from files."""

    def render_str(self, text: str, **keywords: Any) -> Text:
        return super().render_str(plain(text), **keywords)


def console(width: int | None = None) -> Console:
    """As wide as the terminal but for very wide ones, unless `width` is given."""
    width = width or min(WIDEST, shutil.get_terminal_size((WIDEST, 24)).columns)
    return PlainConsole(width=width, highlight=False, markup=False, soft_wrap=False)


def table(
    columns: Sequence[str], numbers: Collection[str] = (), wrap: Collection[str] = (), gap: int = 2, titled: bool = True
) -> Table:
    """Columns without lines between them; those in `wrap` give way where there is no room."""
    empty = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), show_header=titled)
    for name in columns:
        empty.add_column(name, justify="right" if name in numbers else "left", no_wrap=name not in wrap)
    return empty


def show_json(document: Any) -> None:
    write_document(json.dumps(document, indent=1))


def show_run(run: Run) -> None:
    """One fit: how fast, how good, where the time of a step went."""
    from ..record.hints import hints  # numpy, which lists do not need
    from ..record.slow_rank import slow_name

    out = console()
    threads = f", {amount(run.threads, 'thread')} each" if run.threads else ""
    device = f" on {run.device}" if run.device else ""
    out.print(f"{run.task} · {run.label} · {amount(run.ranks, 'rank')}{device}{threads}")
    if run.status != "done":
        out.print(f"  {run.status}: {run.reason}")
    elif run.reason:
        out.print(f"  {run.reason}")
    if run.steps and run.seconds:
        rate = f"{run.samples_per_second:,.0f} samples/s" if run.samples_per_second else None
        median = f"median step {figure(run.step_ms.get('median'), '.2f')} ms" if run.step_ms else None
        out.print(f"  {amount(run.steps, 'step')} in {run.seconds:.1f} s: {', '.join(filter(None, (rate, median)))}")
    if run.test:
        out.print(f"  test: {in_words(run.test)}")
    if run.ema and run.ema.get("test"):
        out.print(f"  test of the averaged weights: {in_words(run.ema['test'])}")
    if run.phases_ms:
        phases = {name: run.phases_ms.get(name) or 0.0 for name in PHASES}
        out.print(f"  where the {sum(phases.values()) or 1.0:.2f} ms of a step go:")
        out.print(Padding.indent(phase_table(phases), 4))
    if run.communication_bytes:
        hidden = run.overlapped_communication_ms or 0.0
        overlap = f"; {hidden:.2f} ms of it hidden behind backward" if hidden >= 0.005 else ""
        out.print(f"  {run.communication_bytes / 1e6:.3f} MB communicated per step{overlap}")
    if run.staleness:
        mean, most = figure(run.staleness.get("mean"), ".2f"), run.staleness.get("max")
        out.print(f"  staleness: mean {mean}, at most {most} updates by others")
    if run.slow_rank:
        behind = figure(run.slow_rank.get("behind_ms"), ".1f")
        out.print(f"  {slow_name(run.slow_rank)} is slow in {run.slow_rank.get('phase')} ({behind} ms per step behind)")
    if run.exact is False and run.exact_reason:
        out.print(f"  not exact: {run.exact_reason}")
    for note in run.notes:
        out.print(f"  note: {note}")
    for hint in hints(run):
        if hint.bottleneck != "straggler" or not run.slow_rank:  # else it stands above
            out.print(f"  hint: {hint.sentence}")
    if run.folder is not None:
        out.print(f"  kept in {run.folder}")


def timings_in_words(timings: Mapping[str, float], process: float) -> str:
    """`timings` are those of a fit; what the process did before it (Python, torch, the task's file) comes first."""
    parts = {"before the fit": max(0.0, process - timings["total"]), **timings}
    said = [f"{name} {seconds:.1f}" for name, seconds in parts.items() if name != "total" and seconds >= 0.05]
    return f"  {process:.1f} s since the start of the command: {', '.join(said)}"


def phase_table(phases: Mapping[str, float]) -> Table:
    """Milliseconds and share of every phase that can be seen, with a bar."""
    total = sum(phases.values()) or 1.0
    shown = table(("phase", "time", "share", "bar"), numbers=("time", "share"), titled=False)
    for name, value in phases.items():
        if value >= 0.005 * total:
            blocks = round(BAR * min(1.0, max(0.0, value / total)))
            shown.add_row(name, f"{value:.2f} ms", f"{100 * value / total:.1f} %", "█" * blocks)
    return shown


def show_evaluation(run: Run, result: Mapping[str, Any], ema: bool = False) -> None:
    out, averaged = console(), " (averaged weights)" if ema else ""
    loss = figure(result["loss"], ".4f")
    out.print(f"{run.task} · {run.label}{averaged}: {result['samples']:,} test samples, loss {loss}")
    if result.get("accuracy") is not None:
        out.print(f"  accuracy {percent(result['accuracy'])}")
    for name, value in metrics_of(result).items():
        out.print(f"  {name} {value:.4f}" if isinstance(value, float) else f"  {name} {value}")
    classes = table(("class", "accuracy"), numbers=("accuracy",), titled=False)
    for name, value in result.get("per_class", {}).items():
        classes.add_row(f"class {name}", percent(value))
    if classes.row_count:
        out.print(Padding.indent(classes, 4))


def amount(value: int, noun: str) -> str:
    return f"{value} {noun}" if value == 1 else f"{value:,} {noun}s"


def figure(value: float | None, form: str) -> str:
    """A number, or a dash where it is not known."""
    return "-" if value is None else format(value, form)


def percent(share: float) -> str:
    return f"{100 * share:.2f} %"
