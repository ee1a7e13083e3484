"""`manyhands compare` and `manyhands chaos`: questions that several fits answer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import BadInput
from . import FAILED
from .inputs import new_folder, read_task, task_source, typed_command
from .options import (
    AsJson,
    BatchSize,
    Device,
    MaxSteps,
    Quiet,
    Ranks,
    Seed,
    Target,
    TaskArgument,
    fit_options,
    with_options,
)


@with_options(fit_options)
def compare(
    task: TaskArgument = "glyphs",
    strategies: Annotated[
        list[str] | None, typer.Argument(metavar="STRATEGY", help="default: a sensible handful")
    ] = None,
    rounds: Annotated[int, typer.Option(help="interleaved slices that measure speed")] = 3,
    target: Target = None,
    time_limit: Annotated[float | None, typer.Option(help="seconds each strategy may take")] = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="where to keep runs and page (default: runs/<date>-<task>-compare)")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    **chosen: Any,
) -> None:
    """Train a task under several strategies: a table, and a page with charts."""
    from ..pages import report as write_report
    from ..studies.compare import compare as compare_runs
    from . import tables, terminal

    work = read_task(task, chosen.pop("batch_size"), chosen.pop("seed"))
    folder = run_dir or new_folder(work.name, "compare")
    runs = compare_runs(
        work,
        strategies or None,
        rounds=rounds,
        time_limit=time_limit,
        run_dir=folder,
        progress=not quiet,
        command=typed_command(),
        source=task_source(task),
        **chosen,
    )
    page = write_report(runs, folder / "report.html", target=target)
    if as_json:
        terminal.show_json({"runs": [run.record() for run in runs], "report": str(page)})
    else:
        tables.show_comparison(runs, page, target)
    if runs.interrupted:
        raise KeyboardInterrupt
    if any(run.status == "failed" for run in runs):
        raise typer.Exit(FAILED)


def chaos(
    task: TaskArgument = "glyphs",
    strategies: Annotated[
        list[str] | None, typer.Argument(metavar="STRATEGY", help="default: ddp; with --all: all")
    ] = None,
    fault: Annotated[
        str | None, typer.Option(help="kill, stop, raise, exit, slow, hang, sigterm, disk-full, ...")
    ] = None,
    rank: Annotated[int | None, typer.Option(help="the rank it strikes (default: the last)")] = None,
    step: Annotated[int | None, typer.Option(help="the step it strikes in")] = None,
    every: Annotated[bool, typer.Option("--all", help="every fault under every strategy")] = False,
    ranks: Ranks = None,
    max_steps: MaxSteps = None,
    batch_size: BatchSize = None,
    seed: Seed = None,
    device: Device = "auto",
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Break a run on purpose: what is noticed, resumed, lost and left behind."""
    from ..studies.chaos import STEPS, chaos_matrix
    from ..studies.chaos import chaos as break_one
    from ..studies.faults import FAULTS
    from . import tables, terminal

    def say(text: str) -> None:
        if not quiet:
            print(text, file=sys.stderr, flush=True)

    chosen = read_task(task, batch_size, seed)
    options: dict[str, Any] = {"ranks": ranks, "max_steps": max_steps or STEPS, "device": device}
    if every or (strategies and len(strategies) > 1) or fault is None:
        if rank is not None or step is not None:
            raise BadInput("--rank and --step aim one fault; give --fault and one strategy with them")
        results = chaos_matrix(
            chosen,
            strategies or (None if every else ["ddp"]),
            FAULTS if fault is None else [fault],
            say=say,
            on_result=lambda result: say(f"{result['strategy']}, {result['fault']}: {result['outcome']}"),
            **options,
        )
    else:
        results = [break_one(chosen, (strategies or ["ddp"])[0], fault, rank, step, **options)]
    if as_json:
        terminal.show_json({"results": results})
    else:
        tables.show_faults(results)
