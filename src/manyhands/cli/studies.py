"""`manyhands compare` and `manyhands chaos`: questions that several fits answer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import BadInput
from ..strategies.table import HANDFUL
from . import FAILED
from .inputs import begin, new_folder, read_task, task_source, typed_command, warn_if_crowded
from .options import (
    AsJson,
    BatchSize,
    Device,
    Log,
    MaxSteps,
    Quiet,
    RankCounts,
    Ranks,
    Seed,
    Target,
    TaskArgument,
    fit_options,
    rank_counts,
    strategy_names,
    with_options,
)


@with_options(fit_options)
def compare(
    task: TaskArgument = "glyphs",
    strategies: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="STRATEGY",
            help=f"Strategies to compare, with options if you like (default: {', '.join(HANDFUL)}).",
            autocompletion=strategy_names,
        ),
    ] = None,
    ranks: RankCounts = None,
    scale_batch: Annotated[
        bool, typer.Option("--scale-batch", help="Multiply the batch size by the ranks of each row.")
    ] = False,
    rounds: Annotated[int, typer.Option(metavar="N", help="Rounds in which all strategies are timed in turn.")] = 3,
    target: Target = None,
    time_limit: Annotated[float | None, typer.Option(metavar="S", help="Seconds that each strategy may take.")] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where to keep runs and report (default: runs/<date>-<task>-compare)."),
    ] = None,
    log: Log = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    **chosen: Any,
) -> None:
    """Train a task under several strategies: a table and a report.

    The report is an HTML page with charts. TASK and strategies are optional: `manyhands compare` is a demonstration.
    """
    counts = rank_counts(ranks)
    begin(task, *(strategies or ()), on=chosen["on"])
    from ..pages import report as write_report
    from ..studies.compare import compare as compare_runs
    from ..world.engines.torchrun import leads
    from . import tables, terminal

    if counts:
        warn_if_crowded(max(counts), max(counts), chosen)
    seed = chosen.pop("seed")
    work = read_task(task, chosen.pop("batch_size"), seed)
    folder = run_dir or new_folder(work.name, "compare")
    runs = compare_runs(
        work,
        strategies or None,
        ranks=counts,
        scale_batch=scale_batch and (lambda batch: read_task(task, batch, seed)),
        rounds=rounds,
        time_limit=time_limit,
        run_dir=folder,
        progress=not quiet,
        log=log,
        command=typed_command(),
        source=task_source(task),
        **chosen,
    )
    if not leads():
        return  # rank 0 of torchrun's speaks, and its exit code counts
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
        list[str] | None,
        typer.Argument(
            metavar="STRATEGY",
            help="Strategies to break (default: ddp; with --all, all of them).",
            autocompletion=strategy_names,
        ),
    ] = None,
    fault: Annotated[
        str | None,
        typer.Option(
            "--fault",
            metavar="FAULT",
            help="The fault: kill, stop, raise, exit, slow, hang, sigterm, disk-full, ... (default: all).",
        ),
    ] = None,
    rank: Annotated[int | None, typer.Option(metavar="R", help="The rank it strikes (default: the last).")] = None,
    step: Annotated[int | None, typer.Option(metavar="S", help="The step in which it strikes.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Try every fault under every strategy.")] = False,
    ranks: Ranks = None,
    max_steps: MaxSteps = None,
    batch_size: BatchSize = None,
    seed: Seed = None,
    device: Device = "auto",
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Break a run on purpose and see whether it recovers.

    It reports what was noticed, resumed, lost and left behind.
    """
    begin(task, *(strategies or ()))
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
