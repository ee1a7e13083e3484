"""Commands that only look: stored runs, running ones, and what there is to train with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import AsJson, Target


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="run folders, or folders of run folders")],
    output: Annotated[Path, typer.Option("--output", "-o", help="where to write the page")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="the page's title")] = None,
    target: Target = None,
) -> None:
    """Make the page from stored runs of any day."""
    from ..pages import report as write_report

    print(write_report(runs, output, title, target))


def runs(
    root: Annotated[Path, typer.Argument(metavar="FOLDER", help="where runs are kept")] = Path("runs"),
    task: Annotated[str | None, typer.Option(help="only runs of this task")] = None,
    strategy: Annotated[str | None, typer.Option(help="only runs under this strategy")] = None,
    status: Annotated[str | None, typer.Option(help="only done, failed, refused or stopped runs")] = None,
    as_json: AsJson = False,
) -> None:
    """List stored runs, newest first, side by side."""
    from ..record.exports import find_runs
    from . import tables, terminal

    found = find_runs(root, task, strategy, status)
    if as_json:
        terminal.show_json({"runs": [{"folder": str(run.folder), **run.record()} for run in found]})
    else:
        tables.show_runs(found, root)


def watch(
    run: Annotated[Path | None, typer.Argument(metavar="RUN", help="its folder (default: the one running)")] = None,
    seconds: Annotated[float | None, typer.Option(help="look for this long, then leave")] = None,
) -> None:
    """Show a running run: curve, phases, ranks. Leaving does not disturb it."""
    from . import watch as watching

    watching.watch(watching.find(run), limit=seconds)


def tasks(as_json: AsJson = False) -> None:
    """List the built-in tasks."""
    from ..tasks import builtin
    from . import tables, terminal

    show = terminal.show_json if as_json else tables.show_tasks
    show(builtin())


def strategies(as_json: AsJson = False) -> None:
    """List the strategies: what each does, whether it is exact, where it runs."""
    from ..strategies import TABLE, make_strategy
    from . import tables, terminal

    found = [make_strategy(name) for name in TABLE]
    rows = [
        {"name": s.name, "exact": s.traits.exact is True, "runs_on": s.traits.runs_on, "summary": s.summary}
        for s in found
    ]
    show = terminal.show_json if as_json else tables.show_strategies
    show(rows)
