"""fit(): train a task under a strategy and return the record. The caller's side of a fit."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch

from .checkpoint import FOLDER, Checkpoint, fingerprint, interval, latest, published, refuse_other_task
from .devices import resolve_devices
from .errors import BadInput, RankFailed, Refused
from .job import PRECISIONS, Job, Settings, build, probe
from .joining import join
from .live import Live
from .loop import Figures, Outcome, Plan, Training
from .measure.run import Run, available_cores
from .progress import Progress
from .runfolder import held
from .snapshot import Keeping
from .strategies import make_strategy
from .strategies.base import Strategy, refuse
from .task import Task
from .world.doctor import Doctor
from .world.launch import Place, launch, warm_up
from .world.rank import COLLECTIVE_SECONDS, Rank, connect, disconnect, from_place, started_by_torchrun, torchrun_place
from .world.survivors import Exchange, SurvivingRank, may_go_on
from .world.watch import Board

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
    fault: Callable[[Rank, int], None] | None = None,
) -> Run:
    """Train `task` under `strategy`; returns the Run (the record, and the weights as `run.weights`).

    Callbacks run in the caller's process, see the figures of rank 0, and end the run when they return true.
    `fault` is called on every rank before the work of each step, until a restart: chaos breaks runs with it.
    """
    began = time.monotonic()
    if not started_by_torchrun():
        warm_up()  # imports torch beside us while we build the job
    chosen = make_strategy(strategy, ranks)
    settings = _settings(
        task, precision, accumulate, clip, sync_batchnorm, loader_workers, epochs, max_steps, capture, compile
    )
    _positive("threads", threads)
    devices = resolve_devices(device, max(chosen.processes, chosen.ranks))
    job = build(task, settings)
    keeping = _keeping(checkpoint_every, resume, run_dir)
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
            refusal.run = _ended(run, "refused", str(refusal))  # type: ignore[attr-defined]
            raise
        except RankFailed as failure:
            failure.run = _ended(run, "failed", str(failure), run_dir)  # type: ignore[attr-defined]
            raise
        except KeyboardInterrupt:
            _ended(run, "stopped", "interrupted (Ctrl-C)", run_dir)
            raise
        finally:
            live.close()
        if outcome is not None:
            _fill(run, outcome, fitting.began)
            _save(run, run_dir)
    return run


def _both(*hearers: Callable[[str, Any], None]) -> Callable[[str, Any], None]:
    def hear(kind: str, content: Any) -> None:
        for hearer in hearers:
            hearer(kind, content)

    return hear


def _keeping(
    checkpoint_every: int | str | None, resume: bool, run_dir: str | os.PathLike[str] | None
) -> Keeping | None:
    every = interval(checkpoint_every)
    if run_dir is None:
        for name, asked in (("checkpoint_every", every is not None), ("resume", resume)):
            if asked:
                raise BadInput(f"{name} needs a folder for checkpoints; give run_dir (--run-dir)")
        return None
    return Keeping(Path(run_dir).absolute() / FOLDER, every) if every else None


def _check_failure_options(max_restarts: int, stall_seconds: float | None, on_death: str) -> None:
    if isinstance(max_restarts, bool) or not isinstance(max_restarts, int) or max_restarts < 0:
        raise BadInput(f"max_restarts must be 0 or more (found {max_restarts!r})")
    if stall_seconds is not None and not stall_seconds > 0:
        raise BadInput(f"stall_seconds must be above 0 (found {stall_seconds!r})")
    if on_death not in ("end", "continue"):
        raise BadInput(f'on_death must be "end" or "continue" (found {on_death!r})')
    if on_death == "continue" and started_by_torchrun():
        raise BadInput("torchrun ends all ranks when one dies, so on_death=continue fails; see its --max-restarts")


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


def _new_run(job: Job, strategy: Strategy, devices: list[torch.device], command: str | None) -> Run:
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


def _save(run: Run, run_dir: str | os.PathLike[str] | None) -> None:
    if run_dir is None:
        return
    try:
        run.save(run_dir)
    except OSError as problem:
        failure = RankFailed(
            f"the run is done but its folder {run_dir} could not be written ({problem.strerror}); "
            "checkpoints there are whole: make room and use --resume",
            kind="disk",
        )
        failure.run = run  # type: ignore[attr-defined]  # the weights are not lost
        raise failure from None


def _answer(callbacks: dict[str, Callback | None], kind: str, figures: Any) -> bool:
    callback = callbacks.get(kind)
    return bool(callback(figures)) if callback is not None else False


def _fault(failure: RankFailed) -> dict[str, Any]:
    return {
        "kind": failure.kind,
        "rank": failure.rank,
        "step": failure.step,
        "phase": failure.phase,
        "message": str(failure),
        "detected_seconds": failure.detected_seconds,
        "resumed_step": None,
        "resumed_seconds": None,
    }


class Fitting:
    """One fit from its first attempt to its last, on the caller's side."""

    def __init__(
        self,
        job: Job,
        strategy: Strategy,
        devices: list[torch.device],
        threads: int | None,
        run: Run,
        plan: Plan,
        run_dir: str | os.PathLike[str] | None,
        show: Callable[[str, Any], None],
        answer: Callable[[str, Any], Any],
        began: float,
    ):
        self.job, self.strategy, self.devices, self.threads = job, strategy, devices, threads
        self.run, self.plan, self.show, self.answer = run, plan, show, answer
        self.checkpoints = Path(run_dir).absolute() / FOLDER if run_dir is not None else None
        self.began = began

    def hear(self, kind: str, content: Any) -> None:
        """What rank 0 says goes to the record and to the screen."""
        if kind == "fault":
            self.run.faults.append(content)
            kind, content = "note", content["message"]
        if kind == "epoch":
            self.run.epochs = [entry for entry in self.run.epochs if entry["epoch"] != content["epoch"]] + [content]
        if kind == "started" and self.run.restarts and self.run.faults:
            self.run.faults[-1]["resumed_seconds"] = content - self.began
        self.show(kind, content)

    def note(self, text: str) -> None:
        self.run.notes.append(text)
        self.show("note", text)

    def last_checkpoint(self, say_if_none: bool = True) -> Checkpoint | None:
        """The newest whole checkpoint of this task; damaged ones are passed over and said."""
        if self.checkpoints is None:
            return None
        found, passed_over = latest(self.checkpoints)
        for reason in passed_over:
            self.note(reason)
        if found is None:
            if say_if_none:
                self.note(f"no checkpoint to resume from in {self.checkpoints}: starting anew")
            return None
        refuse_other_task(found, fingerprint(self.job))
        where = {"step": found.step, "epoch": found.epoch + 1}
        self.run.resumed_from = {**where, "strategy": found.strategy, "ranks": found.ranks}
        self.run.faults = self.run.faults or found.history["faults"]
        self.run.epochs = [entry for entry in self.run.epochs if entry["epoch"] <= found.epoch]
        self.note(f"resuming after step {found.step} from {found.path}")
        return found

    def first_start(self, resume: bool) -> Checkpoint | None:
        """Where to begin. A fit that starts anew puts the checkpoints of the run before it aside."""
        if resume:
            return self.last_checkpoint()
        if self.plan.keeping and self.checkpoints and published(self.checkpoints):
            aside = self.checkpoints.with_name(FOLDER + ".before")
            shutil.rmtree(aside, ignore_errors=True)
            os.rename(self.checkpoints, aside)
            self.note(f"starting anew: the checkpoints of an earlier run are now in {aside}")
        return None

    # ------------------------------------------------------------ ranks of our own

    def launch(
        self, resume: bool, max_restarts: int, stall_seconds: float | None, time_limit: float | None
    ) -> Outcome | None:
        """Start the ranks; after a failure start them again from the last checkpoint, as often as allowed."""
        if self.plan.survive and not self.strategy.survives:
            reason = "cannot go on without a rank (on_death=continue); hogwild and parameter_server:mode=async can"
            raise refuse(self.strategy, reason)
        start = self.first_start(resume)
        probe(self.job)
        self.strategy.check(self.job)
        self.job.prepared = self.strategy.prepare(self.job)
        self.run.threads = self.threads or max(1, available_cores() // self.strategy.ranks)
        until = time.monotonic() + time_limit if time_limit else None
        while True:
            try:
                return self._attempt(start, Doctor(stall_seconds), until - time.monotonic() if until else None)
            except RankFailed as failure:
                self.began = time.monotonic()
                start = self._start_after(failure, max_restarts, start)

    def _attempt(self, start: Checkpoint | None, doctor: Doctor, time_limit: float | None) -> Outcome | None:
        strategy = self.strategy
        plan = replace(self.plan, resume=start, faults=tuple(self.run.faults))
        if self.run.restarts:
            plan = replace(plan, fault=None)
        exchange = Exchange(self.answer)
        results = launch(
            partial(rank_body, job=self.job, strategy=strategy, devices=self.devices, plan=plan),
            strategy.processes,
            ranks=min(strategy.ranks, strategy.processes),
            threads=self.run.threads or 1,
            shared=strategy.share(self.job),
            preload=strategy.preload,
            on_tell=lambda _, kind, content: self.hear(kind, content),
            on_ask=exchange,
            watch=doctor,
            forgive=self._goes_on if plan.survive else None,
            time_limit=time_limit,
        )
        return exchange.outcome or next((result for result in results if result is not None), None)

    def _goes_on(self, failure: RankFailed, board: Board) -> bool:
        """Whether the others can do without a dead rank; if so it is noted and its share is theirs."""
        if not may_go_on(failure, board):
            return False
        self.run.faults.append({**_fault(failure), "message": f"{failure}; the others go on"})
        self.note(f"{failure}; the others go on and share its work")
        return True

    def _start_after(self, failure: RankFailed, max_restarts: int, start: Checkpoint | None) -> Checkpoint | None:
        """Note the failure and say where to start again; raises it where that is not allowed or leads nowhere."""
        run, before = self.run, self.run.faults[-1] if self.run.restarts else None
        fault = _fault(failure)
        run.faults.append(fault)
        if run.restarts >= max_restarts or failure.kind == "time limit":
            raise failure
        found = self.last_checkpoint(say_if_none=False)
        step = found.step if found else 0
        if before is not None and before["step"] == failure.step and before["resumed_step"] == step:
            raise RankFailed(
                f"given up after {run.restarts} restart{'s' * (run.restarts != 1)}: step {failure.step} failed again "
                f"without a newer checkpoint than step {step}: {failure}",
                rank=failure.rank,
                step=failure.step,
                phase=failure.phase,
                kind=failure.kind,
                traceback=failure.traceback,
            ) from None
        run.restarts += 1
        fault["resumed_step"] = step
        self.note(f"{failure}; restart {run.restarts} of {max_restarts} from step {step}")
        return found


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
    rank, store = from_place(place, device, SurvivingRank if plan.survive else Rank)
    rank.devices = devices
    connect(rank, getattr(strategy, "transport", "auto"), store, COLLECTIVE_SECONDS)
    try:
        return Training(job, strategy, rank, plan).run()
    finally:
        disconnect(rank)
