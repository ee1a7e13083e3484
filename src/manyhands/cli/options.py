"""The options of the command line. Those that go straight to `fit` stand here once, for every command that trains."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

TaskArgument = Annotated[str, typer.Argument(metavar="TASK", help="a built-in task, or a file that defines `task`")]
Ranks = Annotated[int | None, typer.Option(help="how many ranks train (default: GPUs, else cores, at least 2)")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, or a list such as cpu,cuda:0,cuda:2")]
BatchSize = Annotated[int | None, typer.Option(help="samples one step consumes over all ranks (default: the task's)")]
MaxSteps = Annotated[int | None, typer.Option(help="end after this many steps")]
Seed = Annotated[int | None, typer.Option(help="seed of weights, order and augmentation (default: the task's)")]
Target = Annotated[float | None, typer.Option(help="a test accuracy (0..1): show the seconds to reach it")]
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON document on standard output")]
Quiet = Annotated[bool, typer.Option("--quiet", help="no progress")]
LoaderWorkers = Annotated[
    Any,
    typer.Option(
        parser=lambda text: int(text) if text.isdecimal() else text,
        metavar="N|auto",
        help="worker processes that load data, for each rank; auto measures how many help",
    ),
]


def fit_options(
    ranks: Ranks = None,
    device: Device = "auto",
    epochs: Annotated[int | None, typer.Option(help="passes over the data (default: the task's)")] = None,
    batch_size: BatchSize = None,
    max_steps: MaxSteps = None,
    threads: Annotated[int | None, typer.Option(help="threads of each rank (default: cores / ranks)")] = None,
    precision: Annotated[str, typer.Option(help="fp32 or bf16")] = "fp32",
    loader_workers: LoaderWorkers = None,
    accumulate: Annotated[int, typer.Option(help="steps whose gradients go into one update")] = 1,
    clip: Annotated[float | None, typer.Option(help="largest norm of the gradient")] = None,
    sync_batchnorm: Annotated[
        bool, typer.Option("--sync-batchnorm", help="BatchNorm over the samples of all ranks")
    ] = False,
    seed: Seed = None,
    capture: Annotated[str, typer.Option(help="auto or off: record CUDA steps once and replay them")] = "auto",
    compile: Annotated[bool, typer.Option("--compile", help="compile the model with torch.compile")] = False,
    eval_every: Annotated[int, typer.Option(help="epochs between evaluations; the last is always evaluated")] = 1,
) -> None:
    """What `fit` and the task are told; the names are those of their keywords."""


def restart_options(
    run_dir: Annotated[
        Path | None, typer.Option(help="where to keep the run (default: runs/<date>-<task>-<strategy>)")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="continue from the last checkpoint in --run-dir")] = False,
    checkpoint_every: Annotated[
        str | None, typer.Option(help="steps between checkpoints (200), or seconds (30s)")
    ] = None,
    max_restarts: Annotated[
        int, typer.Option(help="restart failed ranks from the last checkpoint at most this often")
    ] = 0,
    stall_seconds: Annotated[
        float | None, typer.Option(help="a rank without progress for this long has stalled")
    ] = None,
    on_death: Annotated[
        str, typer.Option(help="end, or continue without a dead rank (hogwild, async parameter_server)")
    ] = "end",
) -> None:
    """What `fit` is told about where a run is kept and what happens when it breaks."""


Command = TypeVar("Command", bound=Callable[..., None])


def with_options(*groups: Callable[..., None]) -> Callable[[Command], Command]:
    """Give a command the options above: they arrive in its `**chosen`, and stand between its arguments and its own.

    typer reads options from signatures alone and has no way to share them, hence a signature made here.
    """

    def wrap(command: Command) -> Command:
        own = list(inspect.signature(command, eval_str=True).parameters.values())[:-1]
        arguments = [given for given in own if isinstance(given.annotation.__metadata__[0], typer.models.ArgumentInfo)]
        rest = [given for given in own if given not in arguments]
        shared = [given for group in groups for given in inspect.signature(group, eval_str=True).parameters.values()]
        command.__signature__ = inspect.Signature([*arguments, *shared, *rest])  # type: ignore[attr-defined]
        return command

    return wrap
