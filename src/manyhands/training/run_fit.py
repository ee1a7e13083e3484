"""run_fit(): what `fit` does with its settings, from the job to the record in the run folder. The caller's side of a fit."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

import torch

from ..data.loading import DatasetSource
from ..data.sources import TensorSource
from ..data.stream import StreamSource
from ..errors import BadInput, ManyhandsError, RankFailed, Refused
from ..record.live import Live
from ..record.run import Run
from ..record.run_folder import held
from ..record.run_forecast import learn_forecast
from ..record.trackers.log import Log, Logs
from ..strategies.contract import Strategy, processes, with_ranks
from ..strategies.job import Job
from ..task import Task
from ..world.engines.choose import opened
from ..world.engines.engine import Engine
from ..world.engines.torchrun import Torchrun
from ..world.launch.by_value import CannotTravel
from ..world.launch.forked import without_lost_threads
from .attempts import Attempts, preload
from .build import build, check_length
from .checkpoints.read import latest
from .checkpoints.resuming import written_between
from .known_so_far import KnownSoFar
from .progress import Progress
from .rank_training import Outcome
from .settings import FitSettings
from .task_notes import notes_after, notes_before
from .travel import ADVICE, unsendable

KINDS: dict[type, str] = {TensorSource: "memory", DatasetSource: "dataset", StreamSource: "stream"}


@without_lost_threads
def run_fit(task: Task, strategy: Strategy, settings: FitSettings) -> Run:
    """Train `task` under `strategy`; the error that ends a run carries its record."""
    with opened(settings.on, preload(strategy, settings)) as engine:
        for tracker in settings.trackers if engine.leads else ():
            tracker.load()
        part = settings.on is engine
        strategy = strategy if part else _on_what_is_there(engine, strategy, settings)
        here = partial(_run_on, engine, task, strategy, settings)
        try:
            return engine.together(processes(strategy), here, _without_weights, part)
        except ManyhandsError as problem:
            if problem.run is not None and problem.run.reason != str(problem):  # another process knew why
                _ended(problem.run, problem.run.status, str(problem), settings.run_dir if engine.leads else None)
            raise


def _run_on(engine: Engine, task: Task, strategy: Strategy, settings: FitSettings) -> Run:
    began, most = time.monotonic(), max(processes(strategy), strategy.ranks)
    engine.reserve(most)
    engine.check(processes(strategy), str(strategy), settings.survives)
    devices = engine.devices(settings.device, most)
    job = build(task, settings.step)
    check_length(job)
    if engine.leads:
        with suppress(Exception):  # an optimizer that cannot be tried on stand-ins
            job.notes += notes_before(job)
    built = time.monotonic()
    run = _new_run(job, strategy, devices, settings)
    folder = settings.run_dir if engine.leads else None
    with (
        held(folder),
        Progress(strategy, job, shown=settings.progress) as display,
        _logged(run, settings, engine.leads, display) as log,
    ):
        live, known = Live(run, folder), KnownSoFar()

        def show(kind: str, content: Any) -> None:
            live.hear(kind, content)
            known.hear(kind, content)
            display.hear(kind, content)
            log.hear(kind, content)

        engine.lost = lambda reason: _ended(run, "failed", reason, folder)
        attempts = Attempts(job, strategy, devices, settings, engine, run, show, began)
        try:
            outcome = attempts.run()
        except Refused as refusal:
            refusal.run = _ended(run, "refused", str(refusal))
            raise
        except RankFailed as failure:
            known.fill(run)
            failure.run = _ended(run, "failed", str(failure), folder)
            raise
        except CannotTravel as problem:
            raise BadInput(f"{unsendable(task) or f'the task cannot be sent to a rank: {problem}'}; {ADVICE}") from None
        except KeyboardInterrupt as ending:
            known.fill(run)
            ending.run = _ended(run, "stopped", "interrupted (Ctrl-C)", folder)  # type: ignore[attr-defined]
            raise
        except ManyhandsError:
            raise
        except Exception as problem:  # a callback's own: no record of an earlier run may pass for this one's
            known.fill(run)
            _ended(run, "failed", f"{type(problem).__name__}: {problem}", folder)
            raise
        finally:
            live.close()
        if outcome is not None:
            _fill(run, outcome, attempts)
            if not isinstance(engine, Torchrun):  # a rank of torchrun's has trained the job's own model
                with suppress(Exception):  # notes are no reason to lose a run
                    run.notes += notes_after(job, outcome.weights, run.updates, run.losses)
            run.timings = _timings(run, attempts, built - began, time.monotonic() - began)
            _save(run, settings)
    return run


@contextmanager
def _logged(run: Run, settings: FitSettings, leads: bool, display: Progress) -> Iterator[Log]:
    """The trackers of this fit. They are told its end here, unless a comparison has more to say."""
    logs = settings.logs or Logs(settings.trackers if leads else [])
    try:
        yield logs.open(run, settings.run_dir, display.warn, lambda text: display.hear("note", text))
    finally:
        if settings.logs is None:
            logs.finish([run])


def _on_what_is_there(engine: Engine, strategy: Strategy, settings: FitSettings) -> Strategy:
    """Where torchrun has started this fit again on more or fewer processes, it goes on with ranks for all of them."""
    needed, there, folder = processes(strategy), engine.processes, settings.checkpoints
    if there is None or there == needed or settings.every is None or folder is None:
        return strategy

    def changed() -> Strategy:
        again = engine.restarts > 0 or written_between(folder, engine.began, engine.born)
        return with_ranks(strategy, strategy.ranks + there - needed) if again else strategy

    return engine.agreed(changed)


def _without_weights(run: Run) -> Run:
    light = copy.copy(run)
    light.weights = light.ema_weights = None
    return light


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


def _fill(run: Run, outcome: Outcome, attempts: Attempts) -> None:
    record = dict(outcome.record)
    run.startup_seconds = (attempts.started or attempts.began) - attempts.began
    run.notes += record.pop("notes")
    entries = {entry["epoch"]: entry for entry in [*record["epochs"], *run.epochs]}
    record["epochs"] = [entries[epoch] for epoch in sorted(entries)]  # ranks that led and died have told theirs
    for name, value in record.items():
        setattr(run, name, value)
    run.weights, run.ema_weights = outcome.weights, outcome.ema_weights
    run.timeline = outcome.timeline


def _timings(run: Run, attempts: Attempts, data: float, total: float) -> dict[str, float]:
    """Where the time between call and record went: what adds up to `total`, with `rest` for what nobody claims."""
    launched = attempts.launched or attempts.began
    parts = {
        "data": data,  # task.model and task.train made, data read
        "checks": max(0.0, launched - attempts.began - data),  # the job tried on a few samples, refusals
        "ranks": max(0.0, (attempts.started or launched) - launched),  # processes, their workers, captured steps
        "training": run.seconds or 0.0,
        "evaluation": run.evaluation_seconds or 0.0,
        "checkpoints": run.checkpoint_seconds or 0.0,
        "pauses": run.pause_seconds or 0.0,
    }
    return {**parts, "rest": max(0.0, total - sum(parts.values())), "total": total}


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
    learn_forecast(run, settings.run_dir)
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
