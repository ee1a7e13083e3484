"""Commands that only look: saved runs, running ones, and what there is to train with."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ..errors import BadInput, did_you_mean
from ..record.untrusted import plain
from .options import AsJson, Target, strategy_names, task_names

STATUSES = ("done", "failed", "refused", "stopped")
SCRIPT = "script"  # what `manyhands run` keeps


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Run folders, or folders that contain run folders.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write the page.")] = Path(
        "report.html"
    ),
    title: Annotated[str | None, typer.Option(metavar="TEXT", help="Title of the page.")] = None,
    target: Target = None,
) -> None:
    """Build an HTML report from saved runs."""
    from ..pages import report as write_report

    unreadable: list[str] = []
    print(write_report(runs, output, title, target, unreadable))
    _say_left_out(unreadable)


def runs(
    root: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder that contains the runs.")] = Path("runs"),
    task: Annotated[str | None, typer.Option("--task", metavar="TASK", help="List only runs of this task.")] = None,
    strategy: Annotated[str | None, typer.Option(metavar="NAME", help="List only runs under this strategy.")] = None,
    status: Annotated[
        str | None,
        typer.Option("--status", metavar="STATUS", help="List only runs that are done, failed, refused or stopped."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List saved runs, newest first."""
    from ..record.exports import find_runs
    from ..strategies.table import full_name
    from . import tables, terminal

    if status not in (None, *STATUSES):
        raise BadInput(f'no status named "{status}"{did_you_mean(str(status), STATUSES)}')
    if strategy is not None and strategy != SCRIPT:
        strategy = full_name(strategy)
    unreadable: list[str] = []
    found = find_runs(root, task, strategy, status, unreadable, series=as_json)
    if as_json:
        terminal.show_json({"runs": [{"folder": str(run.folder), **run.record()} for run in found]})
    else:
        tables.show_runs(found, root)
    _say_left_out(unreadable)


def _say_left_out(unreadable: list[str]) -> None:
    """A run that a newer version wrote must not seem lost."""
    if unreadable:
        count = f"{len(unreadable)} record{'s' * (len(unreadable) > 1)}"
        print(f"manyhands: {count} left out: {plain(sorted(unreadable)[0])}", file=sys.stderr)


def watch(
    run: Annotated[
        Path | None, typer.Argument(metavar="RUN", help="The run's folder (default: the run in progress).")
    ] = None,
    seconds: Annotated[float | None, typer.Option(metavar="S", help="Stop watching after this many seconds.")] = None,
) -> None:
    """Follow a run in progress: loss curve, phases, ranks.

    Leaving with Ctrl-C does not disturb the run.
    """
    from . import watch as watching

    watching.watch(watching.find(run), limit=seconds)


def tasks(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Show the options of this task.", autocompletion=task_names)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the built-in tasks, or show the options of one."""
    from ..tasks import builtin, declared_task
    from ..tasks import check_names as check_task
    from . import lists, terminal

    known = builtin()
    if name is None:
        (terminal.show_json if as_json else lists.show_tasks)(known)
        return
    name = without_options(name, check_task)
    options, example = declared_task(name)
    row = {"name": name, "summary": known[name], "options": [asdict(one) for one in options], "example": example}
    (terminal.show_json if as_json else lists.show_task)(row)


def strategies(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Show the options of this strategy.", autocompletion=strategy_names),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the parallel strategies, or show the options of one."""
    from ..strategies import TABLE, declared_strategy
    from ..strategies import check_names as check_strategy
    from . import lists, terminal

    if name is not None:
        name = without_options(name, check_strategy)
        (terminal.show_json if as_json else lists.show_strategy)(asdict(declared_strategy(name)))
        return
    found = [declared_strategy(one) for one in TABLE]
    rows = [{"name": s.name, "exact": s.exact, "runs_on": s.runs_on, "summary": s.summary} for s in found]
    (terminal.show_json if as_json else lists.show_strategies)(rows)


def without_options(spec: str, check: Callable[[str], None]) -> str:
    """The name in `ddp:compress=bf16`: whoever copies it from a command wants to read of its options."""
    name, colon, _ = spec.partition(":")
    if not colon or name.endswith(".py"):
        return spec
    check(spec)
    return name
