"""`manyhands diagnose`: what holds a job back, by experiment, or as far as the record of a run tells."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import BadInput
from .inputs import begin, new_folder, read_task, task_source
from .options import AsJson, Quiet, StrategyArgument, fit_options, restart_options, task_names, with_options


@with_options(fit_options, restart_options)
def diagnose(
    task: Annotated[
        str,
        typer.Argument(
            metavar="TASK|RUN",
            help="A task to experiment with, or the folder of a saved run.",
            autocompletion=task_names,
        ),
    ] = "glyphs",
    strategy: StrategyArgument = "single",
    budget: Annotated[float, typer.Option(metavar="S", help="Seconds the experiments may take.")] = 120.0,
    apply: Annotated[bool, typer.Option("--apply", help="Then run the job with the best change.")] = False,
    even_if_busy: Annotated[
        bool, typer.Option("--even-if-busy", help="Go ahead although other processes use the cores.")
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    **chosen: Any,
) -> None:
    """Find the bottleneck by experiment, and what would help.

    It changes one thing at a time, measures each change, and names the one that helps most and by how much.
    """
    if not _is_run(task):
        begin(task, strategy, on=chosen["on"])
    from . import tables, terminal

    if _is_run(task):
        from ..record.run import Run
        from ..studies.diagnose.stored import diagnose_run

        if apply:
            raise BadInput(f"--apply needs a task to run; {task} is the record of a run")
        result = diagnose_run(Run.load(task, weights=False))
    else:
        from ..studies.diagnose.diagnose import diagnose as find_out

        typed = {name: chosen.pop(name) for name in ("batch_size", "seed")}
        work = read_task(task, typed["batch_size"], typed["seed"])
        kept = chosen.pop("run_dir")
        folder = (kept or new_folder(work.name, strategy)) if apply else None
        if chosen.pop("resume"):
            raise BadInput("--resume: experiments start from scratch; leave it out")
        say = (lambda text: None) if quiet else _said_since(time.monotonic())
        result = find_out(
            work,
            strategy,
            budget=budget,
            apply=apply,
            even_if_busy=even_if_busy,
            run_dir=folder,
            typed=typed,
            say=say,
            source=task_source(task),
            **chosen,
        )
    if as_json:
        terminal.show_json(result)
    else:
        tables.show_diagnosis(result)


def _is_run(spec: str) -> bool:
    """A folder, or a record: what is neither is a task."""
    path = Path(spec)
    return path.is_dir() or (path.suffix == ".json" and path.is_file())


def _said_since(began: float) -> Any:
    def say(text: str) -> None:
        print(f"{time.monotonic() - began:5.0f} s  {text}", file=sys.stderr, flush=True)

    return say
