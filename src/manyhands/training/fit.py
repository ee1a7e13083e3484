"""fit(): train a task under a strategy and return the record. The caller's side of a fit."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..errors import BadInput, RankFailed, Refused
from ..record.live import Live
from ..record.run import Run
from ..record.run_folder import CHECKPOINTS, held
from ..strategies import make_strategy
from ..strategies.contract import Strategy, processes
from ..strategies.job import Job, StepSettings, check_count
from ..task import Task
from ..world.devices import resolve_devices
from ..world.launch.fork_server import warm_up
from ..world.launch.forked import without_lost_threads
from ..world.rank import Rank, started_by_torchrun, torchrun_place
from . import PRELOAD
from .attempts import Fitting
from .build import build, check_length
from .callbacks import Figures
from .checkpoints.checkpoint import interval, latest
from .checkpoints.conditions import conditions
from .checkpoints.snapshots import Keeping
from .joining import join
from .progress import Progress
from .rank_training import Outcome, Plan

Callback = Callable[[Figures], Any]


@without_lost_threads
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
    progress: bool = True,
    time_limit: float | None = None,
    command: str | None = None,
    source: str | None = None,
    fault: Callable[[Rank, int], None] | None = None,
) -> Run:
    """Train `task` under `strategy`; returns the Run (the record, and the weights as `run.weights`).

    Callbacks run in the caller's process, see the figures of rank 0, and end the run when they return true.
    `fault` is called on every rank before the work of each step, until a restart: chaos breaks runs with it.
    """
    began = time.monotonic()
    if not started_by_torchrun():
        warm_up(PRELOAD)  # imports torch beside us while we build the job
    chosen = make_strategy(strategy, ranks)
    settings = StepSettings(
        accumulate, clip, precision, sync_batchnorm, epochs, max_steps, loader_workers, capture, compile
    )
    check_count("threads", threads)
    devices = resolve_devices(device, max(processes(chosen), chosen.ranks))
    job = build(task, settings)
    check_length(job)
    keeping = _keeping(checkpoint_every, resume, run_dir, job)
    plan = Plan(on_step is not None, on_epoch is not None, keeping=keeping, survive=on_death == "continue", fault=fault)
    _check_failure_options(max_restarts, stall_seconds, on_death)
    run = _new_run(job, chosen, devices, command)
    run.source = source
    callbacks = {"on_step": on_step, "on_epoch": on_epoch}
    writes = not started_by_torchrun() or torchrun_place()[0] == 0
    with held(run_dir if writes else None), Progress(chosen, job, shown=progress) as display:
        answer = partial(_answer, callbacks)
        live = Live(run, run_dir if writes else None)
        fitting = Fitting(
            job, chosen, devices, threads, run, plan, run_dir, _both(live.hear, display.hear), answer, began
        )
        try:
            if started_by_torchrun():
                outcome = join(fitting, resume, stall_seconds)
            else:
                outcome = fitting.launch(resume, max_restarts, stall_seconds, time_limit)
        except Refused as refusal:
            refusal.run = _ended(run, "refused", str(refusal))
            raise
        except RankFailed as failure:
            failure.run = _ended(run, "failed", str(failure), run_dir)
            raise
        except KeyboardInterrupt:
            _ended(run, "stopped", "interrupted (Ctrl-C)", run_dir)
            raise
        finally:
            live.close()
        if outcome is not None:
            _fill(run, outcome, fitting.began)
            _save(run, run_dir, keeping is not None or resume)
    return run


def _both(*hearers: Callable[[str, Any], None]) -> Callable[[str, Any], None]:
    def hear(kind: str, content: Any) -> None:
        for hearer in hearers:
            hearer(kind, content)

    return hear


def _keeping(
    checkpoint_every: int | str | None, resume: bool, run_dir: str | os.PathLike[str] | None, job: Job
) -> Keeping | None:
    every = interval(checkpoint_every)
    if run_dir is None:
        for name, asked in (("checkpoint_every", every is not None), ("resume", resume)):
            if asked:
                raise BadInput(f"{name} needs a folder for checkpoints; give run_dir (--run-dir)")
        return None
    return Keeping(Path(run_dir).absolute() / CHECKPOINTS, every, conditions(job)) if every else None


def _check_failure_options(max_restarts: int, stall_seconds: float | None, on_death: str) -> None:
    if isinstance(max_restarts, bool) or not isinstance(max_restarts, int) or max_restarts < 0:
        raise BadInput(f"max_restarts must be 0 or more (found {max_restarts!r})")
    if stall_seconds is not None and not stall_seconds > 0:
        raise BadInput(f"stall_seconds must be above 0 (found {stall_seconds!r})")
    if on_death not in ("end", "continue"):
        raise BadInput(f'on_death must be "end" or "continue" (found {on_death!r})')
    if on_death == "continue" and started_by_torchrun():
        raise BadInput("torchrun ends all ranks when one dies, so on_death=continue fails; see its --max-restarts")


def _new_run(job: Job, strategy: Strategy, devices: list[torch.device], command: str | None) -> Run:
    return Run(
        task=job.task.name or type(job.model).__name__,
        strategy=strategy.name,
        options=strategy.options,
        ranks=strategy.ranks,
        exact=strategy.traits.exact is True,  # until the job was tried
        device=devices[0].type,
        devices=[str(device) for device in devices],
        batch_size=job.task.batch_size,
        accumulate=job.settings.accumulate,
        precision=job.settings.precision,
        seed=job.task.seed,
        command=command,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _fill(run: Run, outcome: Outcome, began: float) -> None:
    record = dict(outcome.record)
    run.startup_seconds = record.pop("first_step_time") - began
    run.notes += record.pop("notes")
    entries = {entry["epoch"]: entry for entry in [*record["epochs"], *run.epochs]}
    record["epochs"] = [entries[epoch] for epoch in sorted(entries)]  # ranks that led and died have told theirs
    for name, value in record.items():
        setattr(run, name, value)
    run.weights = outcome.weights
    run.timeline = outcome.timeline


def _ended(run: Run, status: str, reason: str, run_dir: str | os.PathLike[str] | None = None) -> Run:
    run.status, run.reason = status, reason
    try:
        if run_dir is not None:
            run.save(run_dir)
    except OSError as problem:  # what ended the run is the news
        run.notes.append(f"{run_dir} could not be written ({problem.strerror})")
    return run


def _save(run: Run, run_dir: str | os.PathLike[str] | None, kept: bool) -> None:
    if run_dir is None:
        return
    try:
        run.save(run_dir)
    except OSError as problem:
        failure = RankFailed(
            f"the run is done but its folder {run_dir} could not be written ({problem.strerror}); {_left(run_dir, kept)}",
            kind="disk",
        )
        failure.run = run  # the weights are not lost
        raise failure from None


def _left(run_dir: str | os.PathLike[str], kept: bool) -> str:
    """What is left of a run whose result could not be written. Checkpoints of other runs are not of this one."""
    found = latest(Path(run_dir) / CHECKPOINTS)[0] if kept else None
    if found is not None:
        return f"the checkpoint after step {found.step} is whole: make room and use --resume"
    return (
        "no checkpoint holds its weights (in Python, the error's `run` does): make room and train again, "
        "with --checkpoint-every if that takes long"
    )


def _answer(callbacks: dict[str, Callback | None], kind: str, figures: Any) -> bool:
    callback = callbacks.get(kind)
    return bool(callback(figures)) if callback is not None else False
