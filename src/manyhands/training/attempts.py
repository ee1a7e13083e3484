"""A fit on the caller's side, from its first attempt to its last: what is found out and refused before the ranks
start, where they start from, and what follows a failure. The same for ranks of our own and for one of torchrun's."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ..errors import RankFailed
from ..model import torch_internals
from ..record.cores import available_cores
from ..record.run import Run
from ..strategies.contract import Strategy, admit, check_stream, divides, exactness, processes, refuse
from ..strategies.job import Job
from ..strategies.pieces.average import holds_average
from ..world.engines.engine import Engine, World
from ..world.health.heartbeats import Board
from ..world.health.survivors import may_go_on
from ..world.rank import Rank
from ..world.shm.trial import SHARED_MEMORY, transport_for
from . import PRELOAD
from .checkpoints.checkpoint import CONDITIONS, Checkpoint, published
from .checkpoints.conditions import changes, conditions
from .checkpoints.resuming import earlier, newest, put_aside
from .checkpoints.same_task import fingerprint, refuse_other_task
from .evaluate import failing_metric
from .orders import RankOrders
from .proof.probe import probe
from .rank_training import Outcome, RankTraining
from .settings import FitSettings


class Attempts:
    """The attempts of one fit. `began` is when the last of them did."""

    def __init__(
        self,
        job: Job,
        strategy: Strategy,
        devices: list[torch.device],
        settings: FitSettings,
        engine: Engine,
        run: Run,
        show: Callable[[str, Any], None],
        began: float,
    ):
        self.job, self.strategy, self.devices, self.settings = job, strategy, devices, settings
        self.engine, self.record, self.show, self.began = engine, run, show, began
        self.callbacks = {"on_step": settings.on_step, "on_epoch": settings.on_epoch}
        self.task: dict[str, Any] = {}  # what checkpoints of this fit say of it

    def run(self) -> Outcome | None:
        """Whatever is refused leaves everything as it was: checkpoints are put aside when nothing can be any more."""
        job, strategy, engine = self.job, self.strategy, self.engine
        self.record.restarts = engine.restarts
        transport = self._check()
        self._try_out()
        admit(strategy, job, self.devices)
        here = engine.ranks_here(strategy.ranks)
        self.record.threads = self.settings.threads or max(1, available_cores() // here)
        world = World(
            processes(strategy),
            min(strategy.ranks, processes(strategy)),
            self.devices,
            self.record.threads,
            transport,
            self.settings.survives,
            self.settings.stall_seconds,
            (*PRELOAD, *strategy.traits.preload),
        )
        with engine.joined(world, self.hear, self._answer):
            job.prepared = engine.once(lambda: strategy.prepare(job))
            return self._attempt_until_done(engine.once(self._where_to_start))

    # ------------------------------------------------------------ before the ranks start

    def _check(self) -> str:
        """Refuse what the job need not be tried for; returns what the ranks talk through."""
        strategy, engine, survives = self.strategy, self.engine, self.settings.survives
        if survives and not strategy.traits.survives:
            reason = "cannot go on without a rank (on_death=continue); hogwild and parameter_server:mode=async can"
            raise refuse(strategy, reason)
        engine.check(processes(strategy), str(strategy), survives)
        if engine.hosts > 1 and not strategy.traits.hosts:
            reason = f"shares memory and cannot run over several hosts (hosts: {engine.hosts})"
            raise refuse(strategy, f"{reason}; use ddp or parameter_server")
        asked = strategy.traits.transport
        transport = transport_for(asked, self.devices, processes(strategy), engine.hosts)
        torch_internals.look()
        unknown = torch_internals.note([SHARED_MEMORY] if transport != asked else [])
        if unknown and engine.leads:
            self.note(unknown)
        check_stream(strategy, self.job, survives)
        return transport

    def _try_out(self) -> None:
        """Try the job on a few samples, and say in the record what follows from it."""
        job, strategy, run = self.job, self.strategy, self.record
        probe(job, self.devices, strategy.traits.any_layout, divides(strategy))
        run.channels_last, run.call = job.channels_last, job.calling.call
        run.weight = None if job.weight is None else "given" if job.task.weight else str(job.weight)
        run.exact, run.exact_reason = exactness(strategy, job)
        if run.exact and job.proof.unchecked:
            self.note(f"exact was not checked before the start: {job.proof.unchecked}")
        if self.engine.leads and (failing := failing_metric(job)) is not None:
            self.note(
                f"tried on two samples, {failing}; if it does on whole batches, the run ends after its first epoch"
            )

    # ------------------------------------------------------------ where they start from

    def _where_to_start(self) -> Checkpoint | None:
        """From what `resume` asks for; else, where the ranks were started again for us, from this fit's own."""
        every, folder = self.settings.every, self.settings.checkpoints
        if every is not None or self.settings.resume:
            self.task = {**fingerprint(self.job), CONDITIONS: conditions(self.job)}
        found = self._resumable() if self.settings.resume else None
        if found is None and self.engine.restarts and every is not None and folder is not None:
            own = any(path.stat().st_mtime >= self.engine.began for path in published(folder))
            found = self._last_checkpoint() if own else None  # else it died before its first: these are of another run
        return found

    def _resumable(self) -> Checkpoint | None:
        """The last checkpoint, else one of a run before it that was put aside."""
        folder = self.settings.checkpoints
        assert folder is not None
        found = self._last_checkpoint()
        if found is None:
            found = earlier(folder, self.task)
            if found is None:
                self.note(f"no checkpoint to resume from in {folder}: starting from scratch")
                return None
            self.note(f"no checkpoint to resume from in {folder}: using one of an earlier run")
            self._goes_on_from(found)
        for change in changes(found.task.get(CONDITIONS) or {}, self.task[CONDITIONS]):
            self.note(f"the checkpoint was made under other conditions: {change}; training goes on with the new ones")
        if self.job.task.ema is not None and not holds_average(found.state):
            self.note("the checkpoint holds no average of the weights (ema): it begins with the next update")
        if found.step >= self.job.total_steps:
            self.note(
                f"nothing is left to train: the checkpoint is of step {found.step} and {self.job.total_steps} steps are "
                "asked for; these are its weights"
            )
        return found

    def _last_checkpoint(self) -> Checkpoint | None:
        """The newest whole checkpoint of this fit."""
        folder = self.settings.checkpoints
        found = newest(folder, self.note) if folder is not None else None
        if found is not None:
            refuse_other_task(found, self.task)
            self._goes_on_from(found)
        return found

    def _goes_on_from(self, found: Checkpoint) -> None:
        run, where = self.record, {"step": found.step, "epoch": found.epoch + 1}
        run.resumed_from = {**where, "strategy": found.strategy, "ranks": found.ranks}
        run.faults = run.faults or found.history["faults"]
        run.epochs = [entry for entry in run.epochs if entry["epoch"] <= found.epoch]
        self.note(f"resuming after step {found.step} from {found.path}")

    def _make_room(self) -> None:
        """Put the checkpoints of an earlier run aside: this one starts from scratch and writes its own."""
        folder = self.settings.checkpoints
        aside = put_aside(folder) if folder is not None and self.settings.every is not None else None
        if aside is not None:
            self.note(f"starting from scratch: the checkpoints of an earlier run are now in {aside}")

    # ------------------------------------------------------------ the attempts

    def _attempt_until_done(self, start: Checkpoint | None) -> Outcome | None:
        """After a failure start the ranks again from the last checkpoint, as often as allowed."""
        limit = self.settings.time_limit
        until = time.monotonic() + limit if limit else None
        ready: Callable[[], None] = self._make_room if start is None else lambda: None
        while True:
            try:
                return self._attempt(start, ready, until - time.monotonic() if until else None)
            except RankFailed as failure:
                if not self.engine.may_restart:
                    raise
                self.began, ready = time.monotonic(), lambda: None
                start = self._start_after(failure, start)

    def _attempt(self, start: Checkpoint | None, ready: Callable[[], None], time_limit: float | None) -> Outcome | None:
        outcome: Outcome | None = self.engine.run(
            partial(_train, job=self.job, strategy=self.strategy, orders=self._orders(start)),
            self.strategy.share(self.job) if self.engine.hosts == 1 else None,
            ready,
            self._goes_on,
            time_limit,
        )
        return outcome

    def _orders(self, start: Checkpoint | None) -> RankOrders:
        settings = self.settings
        return RankOrders(
            on_step=settings.on_step is not None,
            on_epoch=settings.on_epoch is not None,
            folder=settings.checkpoints,
            every=settings.every,
            task=self.task,
            resume=start,
            faults=tuple(self.record.faults),
            survives=settings.survives,
            fault=None if self.record.restarts else settings.fault,
        )

    def _goes_on(self, failure: RankFailed, board: Board) -> bool:
        """Whether the others can do without a dead rank; if so it is noted and its share is theirs."""
        if not may_go_on(failure, board):
            return False
        self.record.faults.append({**_fault(failure), "message": f"{failure}; the others go on"})
        self.note(f"{failure}; the others go on and share its work")
        return True

    def _start_after(self, failure: RankFailed, start: Checkpoint | None) -> Checkpoint | None:
        """Note the failure and say where to start again; raises it where that is not allowed or leads nowhere."""
        run, most = self.record, self.settings.max_restarts
        before = run.faults[-1] if run.restarts else None
        fault = _fault(failure)
        run.faults.append(fault)
        if run.restarts >= most or failure.kind == "time limit":
            raise failure
        found = (self._last_checkpoint() if self.settings.every is not None else None) or start
        step = found.step if found else 0
        if before is not None and before["step"] == failure.step and before["resumed_step"] == step:
            given_up = (
                f"given up after {run.restarts} restart{'s' * (run.restarts != 1)}: step {failure.step} failed again"
            )
            failure.args = (f"{given_up} without a newer checkpoint than step {step}: {failure}",)
            raise failure
        run.restarts += 1
        fault["resumed_step"] = step
        self.note(f"{failure}; restart {run.restarts} of {most} from step {step}")
        return found

    # ------------------------------------------------------------ what ranks say

    def hear(self, kind: str, content: Any) -> None:
        """What rank 0 says goes to the record and to the screen."""
        run = self.record
        if kind == "note":
            run.notes.append(content)
        if kind == "fault":
            run.faults.append(content)
            kind, content = "note", content["message"]
        if kind == "epoch":
            run.epochs = [entry for entry in run.epochs if entry["epoch"] != content["epoch"]] + [content]
        if kind == "started" and run.restarts and run.faults:
            run.faults[-1]["resumed_seconds"] = content - self.began
        self.show(kind, content)

    def note(self, text: str) -> None:
        self.hear("note", text)

    def _answer(self, kind: str, figures: Any) -> bool:
        """A rank asks whether a callback ends the run."""
        callback = self.callbacks[kind]
        return callback is not None and bool(callback(figures))


def _fault(failure: RankFailed) -> dict[str, Any]:
    known = {name: getattr(failure, name) for name in ("kind", "rank", "step", "phase", "detected_seconds")}
    return {**known, "message": str(failure), "resumed_step": None, "resumed_seconds": None}


def _train(rank: Rank, job: Job, strategy: Strategy, orders: RankOrders) -> Outcome | None:
    """What every rank runs."""
    return RankTraining(job, strategy, rank, orders).run()
