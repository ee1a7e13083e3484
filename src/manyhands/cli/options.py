"""The options of the command line. Those that go straight to `fit` stand here once, for every command that trains."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from ..errors import BadInput
from ..strategies.table import TABLE
from .document import keep_for_document


def rank_counts(text: str | None) -> list[int] | None:
    """`1,2,4` as numbers; `2` is a list of one."""
    if text is None:
        return None
    if not re.fullmatch(r"-?\d+(,-?\d+)*", text):
        raise BadInput(f"--ranks takes a number or a list such as 1,2,4 (found {text!r})")
    return [int(part) for part in text.split(",")]


def _device(text: str) -> str:
    """What can be told of a device without torch: whether it is a word of ours."""
    words = "auto" if text == "auto" else text.split(",")
    wrong = [word for word in words if not re.fullmatch(r"(cpu|cuda)(:\d+)?", word.strip())] if words != "auto" else []
    if wrong:
        raise BadInput(
            f'no device named "{wrong[0]}" in device={text}; use auto, cpu, cuda or a list such as cpu,cuda:0'
        )
    return text


def _one_of(option: str, *words: str) -> Callable[[str], str]:
    """A check that needs no torch; `fit` has its own."""

    def check(text: str) -> str:
        if text not in words:
            raise BadInput(f'{option} takes {" or ".join(words)} (found "{text}")')
        return text

    return check


def _accuracy(value: float | None) -> float | None:
    """Refused before anything is trained towards it."""
    if value is not None and not 0 <= value <= 1:
        percent = f"; {value:g} % is {value / 100:g}" if 1 < value <= 100 else ""
        raise BadInput(f"--target takes an accuracy from 0 to 1 (found {value:g}{percent})")
    return value


def task_names(incomplete: str) -> list[str]:
    """For shell completion; a shell adds the files itself."""
    from ..tasks import builtin

    return [name for name in builtin() if name.startswith(incomplete)]


def strategy_names(incomplete: str) -> list[str]:
    return [name for name in TABLE if name.startswith(incomplete)]


STRATEGY_HELP = "A strategy, with options if you like: ddp, or pipeline:chunks=8. `manyhands strategies` lists them."
TaskArgument = Annotated[
    str,
    typer.Argument(
        metavar="TASK",
        help="A built-in task, with options if you like (glyphs:train=6000), or a Python file that defines `task`.",
        autocompletion=task_names,
    ),
]
StrategyArgument = Annotated[str, typer.Argument(metavar="STRATEGY", help=STRATEGY_HELP, autocompletion=strategy_names)]
Ranks = Annotated[
    int | None,
    typer.Option(metavar="N", help="How many ranks train (default: one per GPU, else one per core, at least 2)."),
]
RankCounts = Annotated[
    str | None,
    typer.Option(
        metavar="N|N,N,...",
        help="How many ranks train; with a list such as 1,2,4 every strategy gets a row for each number.",
    ),
]
Device = Annotated[
    str,
    typer.Option(
        "--device", callback=_device, metavar="DEVICE", help="auto, cpu, cuda, or one per rank: cpu,cuda:0,cuda:2."
    ),
]
BatchSize = Annotated[
    int | None,
    typer.Option(metavar="B", help="Samples that one step consumes over all ranks (default: the task's batch size)."),
]
MaxSteps = Annotated[int | None, typer.Option(metavar="S", help="Stop after this many steps.")]
Seed = Annotated[
    int | None, typer.Option(metavar="S", help="Seed of weights, order and augmentation (default: the task's seed).")
]
Target = Annotated[
    float | None,
    typer.Option(
        callback=_accuracy, metavar="0..1", help="A test accuracy: show how many seconds each run took to reach it."
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", callback=keep_for_document, help="Print one JSON document on standard output.")
]
On = Annotated[
    str,
    typer.Option(
        metavar="WHERE",
        help="Where ranks start: local, slurm or ray, with options if you like: slurm:nodes=2,partition=gpu.",
    ),
]
Log = Annotated[
    str | None,
    typer.Option(
        "--log",
        "--log-to",  # torchrun's own parser takes `--log` for an abbreviation of its options
        metavar="NAMES",
        help="Log figures to wandb, mlflow, tensorboard or csv, or to several of them: wandb,csv.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Hide progress output.")]
LoaderWorkers = Annotated[
    Any,
    typer.Option(
        parser=lambda text: int(text) if text.isdecimal() else text,
        metavar="N|auto",
        help="Worker processes per rank that load data; auto measures how many help.",
    ),
]


def fit_options(
    ranks: Ranks = None,
    device: Device = "auto",
    epochs: Annotated[
        int | None, typer.Option(metavar="E", help="Passes over the training data (default: the task's epochs).")
    ] = None,
    batch_size: BatchSize = None,
    max_steps: MaxSteps = None,
    threads: Annotated[
        int | None, typer.Option(metavar="T", help="Threads per rank (default: cores divided by ranks).")
    ] = None,
    precision: Annotated[
        str,
        typer.Option(
            callback=_one_of("--precision", "fp32", "bf16"),
            metavar="fp32|bf16",
            help="Number format of the forward and backward pass.",
        ),
    ] = "fp32",
    loader_workers: LoaderWorkers = None,
    accumulate: Annotated[
        int, typer.Option(metavar="K", help="Accumulate the gradients of this many steps per update.")
    ] = 1,
    clip: Annotated[float | None, typer.Option(metavar="NORM", help="Clip gradients to this norm.")] = None,
    sync_batchnorm: Annotated[
        bool, typer.Option("--sync-batchnorm", help="Compute BatchNorm statistics over the samples of all ranks.")
    ] = False,
    seed: Seed = None,
    capture: Annotated[
        str,
        typer.Option(
            callback=_one_of("--capture", "auto", "off"),
            metavar="auto|off",
            help="Record the steps of a GPU once as a CUDA graph and replay them, where possible.",
        ),
    ] = "auto",
    compile: Annotated[bool, typer.Option("--compile", help="Compile the model with torch.compile.")] = False,
    eval_every: Annotated[
        int, typer.Option(metavar="E", help="Evaluate after every E-th epoch; the last one is always evaluated.")
    ] = 1,
    on: On = "local",
) -> None:
    """What `fit` and the task are told; the names are those of their keywords."""


def restart_options(
    run_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where to keep the run (default: runs/<date>-<task>-<strategy>)."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the last checkpoint in --run-dir.")] = False,
    checkpoint_every: Annotated[
        str | None, typer.Option(metavar="N|Ns", help="Write a checkpoint every N steps (200) or seconds (30s).")
    ] = None,
    max_restarts: Annotated[
        int,
        typer.Option(metavar="N", help="Restart failed ranks from the last checkpoint at most N times."),
    ] = 0,
    stall_seconds: Annotated[
        float | None, typer.Option(metavar="S", help="Treat a rank without progress for S seconds as stalled.")
    ] = None,
    on_death: Annotated[
        str,
        typer.Option(
            callback=_one_of("--on-death", "end", "continue"),
            metavar="end|continue",
            help="When a rank dies: end the run, or continue without it (hogwild, parameter_server:mode=async).",
        ),
    ] = "end",
) -> None:
    """What `fit` is told about where a run is kept and what happens when it breaks."""


Command = TypeVar("Command", bound=Callable[..., None])


def with_options(*groups: Callable[..., None]) -> Callable[[Command], Command]:
    """Give a command the options above: they arrive in its `**chosen`, and stand between its arguments and its own. One
    that the command has under the same name is the command's.

    typer reads options from signatures alone and has no way to share them, hence a signature made here.
    """

    def wrap(command: Command) -> Command:
        own = list(inspect.signature(command, eval_str=True).parameters.values())[:-1]
        arguments = [given for given in own if isinstance(given.annotation.__metadata__[0], typer.models.ArgumentInfo)]
        rest = [given for given in own if given not in arguments]
        shared = [
            given
            for group in groups
            for name, given in inspect.signature(group, eval_str=True).parameters.items()
            if name not in {one.name for one in own}
        ]
        command.__signature__ = inspect.Signature([*arguments, *shared, *rest])  # type: ignore[attr-defined]
        return command

    return wrap
