"""fit(): train a task under a strategy and return the record."""

from __future__ import annotations

import os

from ..record.run import Run
from ..record.trackers import Chosen
from ..strategies import make_strategy
from ..strategies.contract import Strategy
from ..strategies.job import StepSettings
from ..task import Task
from ..world.engines.choose import On
from .run_fit import run_fit
from .settings import Callback, FitSettings


def fit(
    task: Task,
    strategy: str | Strategy = "single",
    *,
    ranks: int | None = None,
    device: str = "auto",
    precision: str = "fp32",
    accumulate: int = 1,
    clip: float | None = None,
    sync_batchnorm: bool = False,
    loader_workers: int | str | None = None,
    threads: int | None = None,
    epochs: int | None = None,
    max_steps: int | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    resume: bool = False,
    checkpoint_every: int | str | None = None,
    max_restarts: int = 0,
    stall_seconds: float | None = None,
    on_death: str = "end",
    on_step: Callback | None = None,
    on_epoch: Callback | None = None,
    capture: str = "auto",
    compile: bool = False,
    eval_every: int = 1,
    progress: bool = True,
    on: On = "local",
    log: Chosen = None,
) -> Run:
    """Train `task` under `strategy` and return the record of it, with the weights.

    It works in scripts, notebooks and the REPL, needs no main guard, and leaves the caller as it found it: threads, random
    state, environment and signal handlers. Everything that can be refused is refused before a process starts.

    Args:
        task: What is trained: model, data, loss and recipe.
        strategy: How it is trained: a name (`"ddp"`), a name with options (`"pipeline:chunks=8"`), or a strategy object
            (`mh.Pipeline(ranks=2, chunks=8)`).
        ranks: How many ranks train. Default: the number of GPUs, otherwise of cores, at least 2; `single` always has 1.
        device: `"auto"`, `"cpu"`, `"cuda"`, or a list of devices for the ranks, such as `"cpu,cuda:0"`.
        precision: `"fp32"`, or `"bf16"` for autocast to 16 bits; the weights stay in 32 bits.
        accumulate: Steps whose gradients go into one update; equal to a batch this many times as large.
        clip: Clip gradients to this norm.
        sync_batchnorm: Compute BatchNorm's statistics over the samples of all ranks.
        loader_workers: Processes per rank that read samples ahead; `"auto"` measures how many help.
        threads: Threads of torch on each rank. Default: cores divided by ranks.
        epochs: Passes over the data. Default: the task's.
        max_steps: End after this many steps, within the epochs. The schedule still spans all epochs.
        run_dir: The folder for `run.json`, the weights and checkpoints. Default: nothing is written.
        resume: Continue from the newest whole checkpoint in `run_dir`; without one, start from scratch.
        checkpoint_every: Steps between checkpoints (`200`), or a time (`"30s"`, `"10m"`). Needs `run_dir`.
        max_restarts: Restart failed ranks from the last checkpoint, at most this many times.
        stall_seconds: A rank that makes no progress for this long counts as stalled. Default: the larger of 30 seconds and
            20 times the median step.
        on_death: `"end"` ends the run when a rank dies; `"continue"` lets the others go on (`hogwild`, and
            `parameter_server` with `mode=async` or `bounded`).
        on_step: Called in the caller's process with the figures of rank 0 after each step; a true result ends the run.
        on_epoch: Called in the same way after each epoch, with `loss`, `test_accuracy` and so on.
        capture: `"auto"` records steps on a GPU once and replays them as a CUDA graph where it can; `"off"` does not.
        compile: Compile the model with `torch.compile`.
        eval_every: Epochs between evaluations of the test set. The end is always evaluated.
        progress: Show progress on standard error.
        on: Where ranks start: `"local"`, `"slurm"`, `"ray"`, or `mh.Slurm(...)` and `mh.Ray(...)` with their options.
        log: Trackers that follow the fit: names such as `"wandb,mlflow,tensorboard,csv"`, or objects of `mh.trackers`.

    Returns:
        The record as attributes (`run.samples_per_second`, `run.phases_ms`, ...) and the trained weights as `run.weights`.

    Raises:
        BadInput: An argument, or the task itself, is wrong. Nothing was started.
        Refused: The strategy cannot train this task; the message says why and what would work.
        RankFailed: A rank failed, died or stalled; the message names rank, step and phase, and `error.run` holds what
            was measured until then.
    """
    step = StepSettings(
        accumulate, clip, precision, sync_batchnorm, epochs, max_steps, loader_workers, capture, compile,
        eval_every=eval_every,
    )  # fmt: skip
    settings = FitSettings(
        step, device, threads, run_dir, resume, checkpoint_every, max_restarts, stall_seconds, on_death, on_step,
        on_epoch, progress, on, log,
    )  # fmt: skip
    return run_fit(task, make_strategy(strategy, ranks), settings)
