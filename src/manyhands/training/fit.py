"""fit(): train a task under a strategy and return the record."""

from __future__ import annotations

import os

from ..record.run import Run
from ..strategies import make_strategy
from ..strategies.contract import Strategy
from ..strategies.job import StepSettings
from ..task import Task
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
) -> Run:
    """Train `task` under `strategy`; returns the Run (the record, and the weights as `run.weights`).

    Callbacks run in the caller's process, see the figures of rank 0, and end the run when they return true.
    """
    step = StepSettings(
        accumulate, clip, precision, sync_batchnorm, epochs, max_steps, loader_workers, capture, compile,
        eval_every=eval_every,
    )  # fmt: skip
    settings = FitSettings(
        step, device, threads, run_dir, resume, checkpoint_every, max_restarts, stall_seconds, on_death, on_step,
        on_epoch, progress,
    )  # fmt: skip
    return run_fit(task, make_strategy(strategy, ranks), settings)
