"""`manyhands train` and `manyhands evaluate`: one fit, and the weights it left."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import BadInput, RankFailed
from .document import write_document
from .inputs import (
    begin,
    check_resume,
    new_folder,
    read_task,
    recorded_task,
    task_source,
    typed_command,
    warn_if_crowded,
)
from .interrupted import show_interrupted
from .options import (
    AsJson,
    Device,
    Log,
    Quiet,
    StrategyArgument,
    TaskArgument,
    fit_options,
    restart_options,
    with_options,
)

if TYPE_CHECKING:
    from ..record.run import Run
    from ..task import Task


@with_options(fit_options, restart_options)
def train(
    task: TaskArgument = "glyphs",
    strategy: StrategyArgument = "single",
    sample: Annotated[
        int | None, typer.Option(metavar="N", help="After training, generate this many characters (shakespeare, gpt).")
    ] = None,
    timings: Annotated[
        bool, typer.Option("--timings", help="Show where the time between prompt and prompt went, in seconds.")
    ] = False,
    log: Log = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    **chosen: Any,
) -> None:
    """Train a task under one strategy and report where the time went."""
    check_resume(chosen["resume"], chosen["run_dir"])
    device = chosen["device"] if strategy == "single" and "," not in chosen["device"] else None
    begin(task, strategy, on=chosen["on"], wait=device)
    from ..strategies import make_strategy
    from ..strategies.contract import processes
    from ..training.run_fit import run_fit
    from ..training.settings import FitSettings
    from ..world.engines.torchrun import leads
    from . import terminal

    work = read_task(task, chosen.pop("batch_size"), chosen.pop("seed"))
    if sample is not None and work.sample is None:
        raise BadInput(
            f"--sample: the task {work.name or task} cannot generate text; shakespeare and gpt:text=FILE can"
        )
    folder = chosen.pop("run_dir") or new_folder(work.name, strategy)
    chosen |= {"command": typed_command(), "source": task_source(task)}
    try:
        made = make_strategy(strategy, chosen.pop("ranks"))
        warn_if_crowded(made.ranks, processes(made), chosen)
        run = run_fit(work, made, FitSettings.of(run_dir=folder, progress=not quiet, log=log, **chosen))
    except RankFailed as failure:
        if as_json and failure.run is not None and not failure.told:
            write_document(failure.run.to_json())
        raise
    except KeyboardInterrupt as ending:
        if leads():
            show_interrupted(ending, folder, as_json)
        raise
    if not leads():
        return  # torchrun started several of us; rank 0 speaks
    if as_json:
        write_document(run.to_json())
    else:
        terminal.show_run(run)
    if timings and run.timings:
        print(
            terminal.timings_in_words(run.timings, seconds_of_this_process()),
            file=sys.stderr if as_json else sys.stdout,
        )
    if sample is not None:
        print(_sample(work, run, sample), file=sys.stderr if as_json else sys.stdout)


def seconds_of_this_process() -> float:
    """Since it was started: on Linux by the clock in which the kernel keeps that, as psutil's is up to a second off."""
    if sys.platform == "linux":
        kept = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        return time.clock_gettime(time.CLOCK_BOOTTIME) - int(kept[19]) / os.sysconf("SC_CLK_TCK")
    import psutil

    return time.time() - psutil.Process().create_time()


def _sample(task: Task, run: Run, length: int) -> str:
    """Text written by the trained model."""
    from ..strategies.job import StepSettings
    from ..training.build import build
    from ..training.evaluate import with_weights

    assert run.weights is not None
    assert task.sample is not None
    model = with_weights(build(task, StepSettings()).model, run.weights).eval()
    return task.sample(model, length)


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    task: Annotated[
        str | None,
        typer.Option("--task", metavar="TASK", help="The task (default: the one that the run's record names)."),
    ] = None,
    device: Device = "auto",
    ema: Annotated[
        bool, typer.Option("--ema", help="Evaluate the averaged weights, where the task kept an average.")
    ] = False,
    eval_batch_size: Annotated[
        int | None, typer.Option(metavar="B", help="Samples per forward pass (default: the task's).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate the weights of a finished run on its test set."""
    from ..record.run import Run, weights_digest

    stored = Run.load(run)  # a folder that is no run is refused before torch is imported
    from ..training.evaluate import evaluate as evaluate_weights
    from ..world.devices import resolve_devices
    from . import terminal

    weights, digest = stored.weights, stored.weights_sha256
    if weights is None or digest is None:
        raise BadInput(f"{run} holds no weights (status: {stored.status}); only a finished run can be evaluated")
    if ema:
        weights, digest = stored.ema_weights, (stored.ema or {}).get("weights_sha256")
        if weights is None or digest is None:
            raise BadInput(f"{run} holds no averaged weights; train the task with ema=0.999, for example")
    if weights_digest(weights) != digest:
        raise BadInput(
            f"the weights in {run} are not those of its record (another SHA-256); one of the files was changed"
        )
    spec = recorded_task(stored.source or stored.task) if task is None else task
    place = resolve_devices(device, 1)[0]
    result = evaluate_weights(read_task(spec), weights, device=place, eval_batch_size=eval_batch_size)
    if as_json:
        terminal.show_json(result)
    else:
        terminal.show_evaluation(stored, result, ema)
