"""run_fit(): what `fit` does with its settings, from the job to the record in the run folder. The caller's side of a fit."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import torch

from ..data.loading import DatasetSource
from ..data.sources import TensorSource
from ..data.stream import StreamSource
from ..errors import RankFailed, Refused
from ..record.live import Live
from ..record.run import Run
from ..record.run_folder import held
from ..strategies.contract import Strategy, processes
from ..strategies.job import Job
from ..task import Task
from ..world.devices import resolve_devices
from ..world.engines.engine import Engine
from ..world.engines.local import Local
from ..world.engines.torchrun import Torchrun
from ..world.launch.fork_server import warm_up
from ..world.launch.forked import without_lost_threads
from ..world.rank import started_by_torchrun
from . import PRELOAD
from .attempts import Attempts
from .build import build, check_length
from .checkpoints.read import latest
from .progress import Progress
from .rank_training import Outcome
from .settings import FitSettings
from .task_notes import notes_after, notes_before

KINDS: dict[type, str] = {TensorSource: "memory", DatasetSource: "dataset", StreamSource: "stream"}


@without_lost_threads
def run_fit(task: Task, strategy: Strategy, settings: FitSettings) -> Run:
    """Train `task` under `strategy`; the error that ends a run carries its record."""
    began = time.monotonic()
    engine = _engine()
    devices = resolve_devices(settings.device, max(processes(strategy), strategy.ranks))
    job = build(task, settings.step)
    check_length(job)
    if engine.leads:
        with suppress(Exception):  # an optimizer that cannot be tried on stand-ins
            job.notes += notes_before(job)
    run = _new_run(job, strategy, devices, settings)
    folder = settings.run_dir if engine.leads else None
    with held(folder), Progress(strategy, job, shown=settings.progress) as display:
        live = Live(run, folder)

        def show(kind: str, content: Any) -> None:
            live.hear(kind, content)
            display.hear(kind, content)

        attempts = Attempts(job, strategy, devices, settings, engine, run, show, began)
        try:
            outcome = attempts.run()
        except Refused as refusal:
            refusal.run = _ended(run, "refused", str(refusal))
            raise
        except RankFailed as failure:
            failure.run = _ended(run, "failed", str(failure), settings.run_dir)
            raise
        except KeyboardInterrupt:
            _ended(run, "stopped", "interrupted (Ctrl-C)", settings.run_dir)
            raise
        finally:
            live.close()
        if outcome is not None:
            _fill(run, outcome, attempts.began)
            if isinstance(engine, Local):  # a rank of torchrun's has trained the job's own model
                with suppress(Exception):  # notes are no reason to lose a run
                    run.notes += notes_after(job, outcome.weights, run.updates, run.losses)
            _save(run, settings)
    return run


def _engine() -> Engine:
    """torchrun's where it started this process, else our own; that one imports torch beside us while we build the job."""
    if started_by_torchrun():
        return Torchrun()
    warm_up(PRELOAD)
    return Local()


def _new_run(job: Job, strategy: Strategy, devices: list[torch.device], settings: FitSettings) -> Run:
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
        data=KINDS.get(type(job.train)),
        loader_workers=job.settings.loader_workers,
        precision=job.settings.precision,
        seed=job.task.seed,
        command=settings.command,
        source=settings.source,
        notes=list(job.notes),
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
    run.weights, run.ema_weights = outcome.weights, outcome.ema_weights
    run.timeline = outcome.timeline


def _ended(run: Run, status: str, reason: str, run_dir: str | os.PathLike[str] | None = None) -> Run:
    """The record of a run without an outcome, kept where there is a folder."""
    run.status, run.reason = status, reason
    try:
        if run_dir is not None:
            run.save(run_dir)
    except OSError as problem:  # what ended the run is the news
        run.notes.append(f"{run_dir} could not be written ({problem.strerror})")
    return run


def _save(run: Run, settings: FitSettings) -> None:
    if settings.run_dir is None:
        return
    try:
        run.save(settings.run_dir)
    except OSError as problem:
        failure = RankFailed(
            f"the run is done but its folder {settings.run_dir} could not be written ({problem.strerror}); "
            f"{_what_is_left(settings)}",
            kind="disk",
        )
        failure.run = run  # the weights are not lost
        raise failure from None


def _what_is_left(settings: FitSettings) -> str:
    """Of a run whose result could not be written. Checkpoints of other runs are not of this one."""
    own = settings.every is not None or settings.resume
    found = latest(settings.checkpoints)[0] if own and settings.checkpoints is not None else None
    if found is not None:
        return f"the checkpoint after step {found.step} is whole: make room and use --resume"
    return (
        "no checkpoint holds its weights (in Python, the error's `run` does): make room and train again, "
        "with --checkpoint-every if that takes long"
    )
