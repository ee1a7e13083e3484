"""`manyhands doctor`: the machine, and a task, looked at before anything starts."""

from __future__ import annotations

from typing import Annotated

import typer

from . import FAILED
from .inputs import check_names
from .options import AsJson, BatchSize, LoaderWorkers, Ranks, strategy_names, task_names


def doctor(
    task: Annotated[
        str | None,
        typer.Argument(
            metavar="TASK", help="A task to look at as well (default: only the machine).", autocompletion=task_names
        ),
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Argument(
            metavar="STRATEGY",
            help="The strategy you mean to use (default: those that compare runs).",
            autocompletion=strategy_names,
        ),
    ] = None,
    ranks: Ranks = None,
    threads: Annotated[int | None, typer.Option(metavar="T", help="Threads per rank that you mean to use.")] = None,
    loader_workers: LoaderWorkers = None,
    batch_size: BatchSize = None,
    as_json: AsJson = False,
) -> None:
    """Check this machine, and a task, before anything starts.

    Each check says what would be slow or fail, and what to do about it. The exit code is 1 if there is a problem.
    """
    check_names(task, *([strategy] if strategy else []))
    from ..studies.doctor.doctor import doctor as look
    from ..tasks import load_task
    from . import terminal

    work = None if task is None else load_task(task, batch_size)
    found = look(work, strategy, ranks, threads=threads, loader_workers=loader_workers)
    checks = found["checks"]
    if as_json:
        terminal.show_json(found)
    else:
        filled = terminal.table(("status", "check", "what"), wrap=("what",), titled=False)
        for check in checks:
            advice = f"; {check['advice']}" if check["advice"] else ""
            filled.add_row(check["status"], check["name"], check["message"] + advice)
        terminal.console(min(80, terminal.console().width)).print(filled)
    if any(check["status"] == "problem" for check in checks):
        raise typer.Exit(FAILED)
