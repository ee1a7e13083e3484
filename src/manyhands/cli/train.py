"""`manyhands train` and `manyhands evaluate`: one fit, and the weights it left."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import BadInput, RankFailed
from .inputs import new_folder, read_task, recorded_task, task_source, typed_command
from .options import AsJson, Device, Quiet, TaskArgument, fit_options, restart_options, with_options

if TYPE_CHECKING:
    from ..record.run import Run
    from ..task import Task


@with_options(fit_options, restart_options)
def train(
    task: TaskArgument = "glyphs",
    strategy: Annotated[str, typer.Argument(metavar="STRATEGY", help="ddp, pipeline:chunks=8, ...")] = "single",
    sample: Annotated[int | None, typer.Option(help="after training, let the model write this many symbols")] = None,
    log: Annotated[str | None, typer.Option(help="also write tensorboard,csv into the run's folder")] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    **chosen: Any,
) -> None:
    """Train a task under one strategy and say where the time went."""
    from ..record.exports import check_logs, write_logs
    from ..strategies import make_strategy
    from ..training.run_fit import run_fit
    from ..training.settings import FitSettings
    from . import terminal

    work = read_task(task, chosen.pop("batch_size"), chosen.pop("seed"))
    if sample is not None and work.sample is None:
        raise BadInput(f"--sample: the task {work.name or task} cannot write samples; shakespeare can")
    logs = check_logs(log)
    folder = chosen.pop("run_dir") or new_folder(work.name, strategy)
    chosen |= {"command": typed_command(), "source": task_source(task)}
    try:
        made = make_strategy(strategy, chosen.pop("ranks"))
        run = run_fit(work, made, FitSettings.of(run_dir=folder, progress=not quiet, **chosen))
    except RankFailed as failure:
        if as_json and failure.run is not None:
            print(failure.run.to_json())
        raise
    if int(os.environ.get("RANK", "0")) != 0:
        return  # torchrun started several of us; rank 0 speaks
    write_logs(run, folder, logs)
    if as_json:
        print(run.to_json())
    else:
        terminal.show_run(run)
    if sample is not None:
        print(_sample(work, run, sample), file=sys.stderr if as_json else sys.stdout)


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
    run: Annotated[Path, typer.Argument(metavar="RUN", help="the folder of a finished run")],
    task: Annotated[str | None, typer.Option(help="the task, instead of the one the run's record names")] = None,
    device: Device = "auto",
    ema: Annotated[bool, typer.Option("--ema", help="the averaged weights, where the task kept an average")] = False,
    eval_batch_size: Annotated[int | None, typer.Option(help="samples per pass; default: the task's")] = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a finished run's weights on its task's test set."""
    from ..record.run import Run, weights_digest
    from ..training.evaluate import evaluate as evaluate_weights
    from ..world.devices import resolve_devices
    from . import terminal

    stored = Run.load(run)
    weights, digest = stored.weights, stored.weights_sha256
    if weights is None or digest is None:
        raise BadInput(f"{run} holds no weights (status: {stored.status}); only a finished run can be evaluated")
    if ema:
        weights, digest = stored.ema_weights, (stored.ema or {}).get("weights_sha256")
        if weights is None or digest is None:
            raise BadInput(f"{run} holds no averaged weights; its task must say ema=0.999, say, when it is trained")
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
