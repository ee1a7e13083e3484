"""fit(): train a task under a strategy and return the record. The caller's side of a fit."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from .devices import resolve_devices
from .errors import BadInput, RankFailed, Refused
from .job import PRECISIONS, Job, Settings, build, probe
from .loop import Figures, Outcome, Plan, Training
from .measure.run import Run, available_cores
from .progress import Progress
from .strategies import make_strategy
from .strategies.base import Strategy
from .task import Task
from .world.launch import Place, launch, warm_up
from .world.rank import Rank, connect, from_place, share_board, share_over_store, started_by_torchrun, torchrun_place
from .world.watch import Board

COLLECTIVE_SECONDS = 600.0  # no wait inside a collective is longer; dead and stalled ranks are noticed much sooner
Callback = Callable[[Figures], Any]


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
    loader_workers: int | None = None,
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
) -> Run:
    """Train `task` under `strategy`; returns the Run (the record, and the weights as `run.weights`).

    Callbacks run in the caller's process, see the figures of rank 0, and end the run when they return true.
    """
    began = time.time()
    if not started_by_torchrun():
        warm_up()  # imports torch beside us while we build the job
    chosen = make_strategy(strategy, ranks)
    settings = _settings(task, precision, accumulate, clip, sync_batchnorm, loader_workers, epochs, max_steps, capture, compile)
    _positive("threads", threads)
    devices = resolve_devices(device, chosen.processes)
    job = build(task, settings)
    plan = Plan(on_step is not None, on_epoch is not None, True)
    run = _new_run(job, chosen, devices, began, command)
    run.source = source
    with Progress(chosen, job, shown=progress) as display:
        answer = partial(_answer, {"on_step": on_step, "on_epoch": on_epoch})
        try:
            if started_by_torchrun():
                outcome = _join(job, chosen, devices, threads, plan, run, display.hear, answer)
            else:
                outcome = _launch(job, chosen, devices, threads, plan, run, display.hear, answer, time_limit)
        except Refused as refusal:
            refusal.run = _ended(run, "refused", str(refusal))  # type: ignore[attr-defined]
            raise
        except RankFailed as failure:
            failure.run = _ended(run, "failed", str(failure), run_dir)  # type: ignore[attr-defined]
            raise
        except KeyboardInterrupt:
            _ended(run, "stopped", "interrupted (Ctrl-C)", run_dir)
            raise
    if outcome is not None:
        _fill(run, outcome, began)
        if run_dir is not None:
            run.save(run_dir)
    return run


def _settings(
    task: Task,
    precision: str,
    accumulate: int,
    clip: float | None,
    sync_batchnorm: bool,
    loader_workers: int | None,
    epochs: int | None,
    max_steps: int | None,
    capture: str,
    compile: bool,
) -> Settings:
    if not isinstance(task, Task):
        raise BadInput(f"fit needs a manyhands Task (found {type(task).__name__}); mh.load_task reads one from a file")
    for name, value in (("accumulate", accumulate), ("epochs", epochs), ("max_steps", max_steps)):
        _positive(name, value)
    if loader_workers is not None and (not isinstance(loader_workers, int) or loader_workers < 0):
        raise BadInput(f"loader_workers must be 0 or more (found {loader_workers!r})")
    if precision not in PRECISIONS:
        raise BadInput(f'no precision named "{precision}"; there are: {", ".join(PRECISIONS)}')
    if clip is not None and not clip > 0:
        raise BadInput(f"clip must be above 0 (found {clip!r})")
    if capture not in ("auto", "off"):
        raise BadInput(f'capture must be "auto" or "off" (found {capture!r})')
    return Settings(
        accumulate, clip, precision, sync_batchnorm, epochs or task.epochs, max_steps, loader_workers, capture, compile
    )


def _positive(name: str, value: int | None) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise BadInput(f"{name} must be a whole number of at least 1 (found {value!r})")


def _new_run(job: Job, strategy: Strategy, devices: list[torch.device], began: float, command: str | None) -> Run:
    exact, why_not = strategy.exactness(job)
    return Run(
        task=job.task.name or type(job.model).__name__,
        strategy=strategy.name,
        options=strategy.options,
        ranks=strategy.ranks,
        exact=exact,
        exact_reason=why_not,
        device=devices[0].type,
        devices=[str(device) for device in devices],
        batch_size=job.task.batch_size,
        accumulate=job.settings.accumulate,
        precision=job.settings.precision,
        seed=job.task.seed,
        command=command,
        started=datetime.fromtimestamp(began, UTC).isoformat(timespec="seconds"),
    )


def _fill(run: Run, outcome: Outcome, began: float) -> None:
    record = dict(outcome.record)
    run.startup_seconds = record.pop("first_step_time") - began
    for name, value in record.items():
        setattr(run, name, value)
    run.weights = outcome.weights
    run.timeline = outcome.timeline


def _ended(run: Run, status: str, reason: str, run_dir: str | os.PathLike[str] | None = None) -> Run:
    run.status, run.reason = status, reason
    if run_dir is not None:
        run.save(run_dir)
    return run


def _answer(callbacks: dict[str, Callback | None], kind: str, figures: Any) -> bool:
    callback = callbacks.get(kind)
    return bool(callback(figures)) if callback is not None else False


# ---------------------------------------------------------------- ranks of our own


def _launch(
    job: Job,
    strategy: Strategy,
    devices: list[torch.device],
    threads: int | None,
    plan: Plan,
    run: Run,
    hear: Callable[[str, Any], None],
    answer: Callable[[str, Any], Any],
    time_limit: float | None,
) -> Outcome | None:
    probe(job)
    strategy.check(job)
    job.prepared = strategy.prepare(job)
    run.threads = threads or max(1, available_cores() // strategy.ranks)
    results = launch(
        partial(rank_body, job=job, strategy=strategy, devices=devices, plan=plan),
        strategy.processes,
        ranks=min(strategy.ranks, strategy.processes),
        threads=run.threads,
        shared=strategy.share(job),
        preload=strategy.preload,
        on_tell=lambda _, kind, content: hear(kind, content),
        on_ask=answer,
        time_limit=time_limit,
    )
    return results[0]


def rank_body(
    place: Place,
    job: Job,
    strategy: Strategy,
    devices: list[torch.device],
    plan: Plan,
) -> Outcome | None:
    """What every launched process runs."""
    device = devices[place.index]
    if device.type == "cuda":
        torch.cuda.set_device(device)
    rank, store = from_place(place, device)
    connect(rank, getattr(strategy, "transport", "auto"), store, COLLECTIVE_SECONDS)
    try:
        return Training(job, strategy, rank, plan).run()
    finally:
        _disconnect(rank)


def _disconnect(rank: Rank) -> None:
    if rank.transport is not None and dist.is_initialized():
        dist.destroy_process_group()


# ---------------------------------------------------------------- ranks of torchrun


def _join(
    job: Job,
    strategy: Strategy,
    devices: list[torch.device],
    threads: int | None,
    plan: Plan,
    run: Run,
    hear: Callable[[str, Any], None],
    answer: Callable[[str, Any], Any],
) -> Outcome | None:
    index, world, hosts = torchrun_place()
    if strategy.processes != world:
        raise BadInput(
            f"torchrun started {world} processes but {strategy} needs {strategy.processes}; "
            f"use --ranks {world} or --nproc-per-node {strategy.processes}"
        )
    if hosts > 1 and not strategy.hosts:
        raise Refused(f"{strategy.name} shares memory and cannot run over several hosts (hosts: {hosts}); use ddp or parameter_server")
    probe(job)
    strategy.check(job)
    local = int(os.environ.get("LOCAL_RANK", index))
    run.threads = threads or max(1, available_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", world)))
    before = torch.get_num_threads()
    torch.set_num_threads(run.threads)
    device = devices[local if hosts > 1 else index]
    if device.type == "cuda":
        torch.cuda.set_device(device)
    rank = Rank(index, world, strategy.ranks, device, Board(world, ranks=strategy.ranks), run.threads, hear, answer, None, hosts)
    own_group = not dist.is_initialized()
    if own_group:
        connect(rank, getattr(strategy, "transport", "auto"), None, COLLECTIVE_SECONDS)
    try:
        if hosts == 1:
            share_board(rank)
        job.prepared = rank.agree(strategy.prepare(job) if index == 0 else None)
        shared = strategy.share(job)
        if shared is not None:
            rank.shared = share_over_store(rank, shared)
        return Training(job, strategy, rank, plan).run()
    finally:
        if own_group:
            _disconnect(rank)
        torch.set_num_threads(before)
