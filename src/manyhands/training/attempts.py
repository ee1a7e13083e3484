"""A fit on the caller's side, from its first attempt to its last: what is found out and refused before the ranks
start, where they start from, and what follows a failure. The same for ranks of our own and for one of torchrun's."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..errors import BadInput, RankFailed
from ..model import torch_internals
from ..model.wide_products import wide_products
from ..model.without_compiler import COMPILER
from ..record.run import Run
from ..strategies.contract import Strategy, admit, check_stream, exactness, processes, refuse, with_ranks
from ..strategies.job import Job
from ..world.engines.engine import Engine, World
from ..world.health.heartbeats import Board
from ..world.health.survivors import may_go_on
from ..world.rank import Rank
from ..world.shm.trial import BY_HOST, SHARED_MEMORY, transport_for
from . import PRELOAD
from .checkpoints.carried import CarriedCheckpoints
from .checkpoints.checkpoint import Checkpoint, published, step_of
from .evaluate import failing_metric
from .orders import RankOrders
from .origin import RANKS_CHANGED, Origin, ranks_changed
from .proof.tried import Tried
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
        self.launched: float | None = None  # when its ranks were asked for,
        self.started: float | None = None  # and when its steps began
        self._tried = settings.tried or Tried()
        self.callbacks = {"on_step": settings.on_step, "on_epoch": settings.on_epoch}
        self.origin = Origin(job, settings, engine, run, self.hear)
        self.asked = strategy  # the one that runs may have fewer ranks for a while
        self.carried = CarriedCheckpoints(settings, engine, self.hear)
        self._fresh = True  # no attempt was made yet
        self._until: float | None = None  # with a time limit, from the first attempt on

    def run(self) -> Outcome | None:
        """Whatever is refused leaves everything as it was: checkpoints are put aside when nothing can be any more."""
        self.record.restarts = self.engine.restarts
        transport = self._check()
        self._try_out()
        return self._among_ranks(transport, lambda: self.origin.find(self.strategy.ranks))

    def _among_ranks(self, transport: str, where: Callable[[], Checkpoint | None]) -> Outcome | None:
        """From `where` on, with as many ranks as the strategy has now."""
        job, strategy, engine = self.job, self.strategy, self.engine
        admit(strategy, job, self.devices)
        self.record.threads = self.settings.threads or engine.threads(strategy.ranks)
        world = World(
            processes(strategy),
            min(strategy.ranks, processes(strategy)),
            self.devices,
            self.record.threads,
            transport,
            self.settings.survives,
            self.settings.stall_seconds,
            preload(strategy, self.settings),
        )
        with engine.joined(world, self.hear, self._answer):
            job.prepared = engine.once(lambda: self._tried.prepare(job, strategy))
            return self._attempt_until_done(engine.once(where))

    # ------------------------------------------------------------ before the ranks start

    def _check(self) -> str:
        """Refuse what the job need not be tried for; returns what the ranks talk through."""
        strategy, engine, survives = self.strategy, self.engine, self.settings.survives
        if survives and not strategy.traits.survives:
            reason = "cannot continue without a rank (on_death=continue); hogwild and parameter_server:mode=async can"
            raise refuse(strategy, reason)
        if engine.hosts > 1 and not strategy.traits.hosts:
            reason = f"shares memory and cannot run over several hosts (hosts: {engine.hosts})"
            raise refuse(strategy, f"{reason}; use ddp or parameter_server")
        asked = strategy.traits.transport
        transport = transport_for(asked, self.devices, processes(strategy), engine.hosts)
        torch_internals.look()
        unknown = torch_internals.note([SHARED_MEMORY, BY_HOST] if transport != asked else [])
        if unknown and engine.leads and unknown not in self.record.notes:
            self.note(unknown)
        check_stream(strategy, self.job, survives)
        return transport

    def _try_out(self) -> None:
        """Try the job on a few samples, and say in the record what follows from it."""
        job, strategy, run = self.job, self.strategy, self.record
        self._tried.try_out(job, strategy, self.devices)
        run.channels_last, run.wide_products, run.call = job.channels_last, job.wide_products, job.calling.call
        run.weight = None if job.weight is None else "given" if job.task.weight else str(job.weight)
        run.exact, run.exact_reason = exactness(strategy, job)
        run.exact_checked = job.proof.unchecked is None
        if run.exact and job.proof.unchecked:
            self.note(f"exact was not checked before the start: {job.proof.unchecked}")
        if self.engine.leads and (failing := failing_metric(job)) is not None:
            self.note(
                f"tried on two samples, {failing}; if it does so on whole batches, the run ends after its first epoch"
            )

    # ------------------------------------------------------------ the attempts

    def _attempt_until_done(self, start: Checkpoint | None) -> Outcome | None:
        """After a failure start the ranks again from the last checkpoint, as often as allowed."""
        while True:
            try:
                return self._attempt(start)
            except RankFailed as failure:
                if not self.engine.may_restart:
                    raise
                self.began, self._fresh = time.monotonic(), False
                start = self._start_after(failure, start)
                if (transport := self._fit_to_room(failure, start)) is not None:
                    return self._among_ranks(transport, lambda found=start: found)  # type: ignore[misc]

    def _attempt(self, start: Checkpoint | None) -> Outcome | None:
        if self._until is None and self.settings.time_limit:
            self._until = time.monotonic() + self.settings.time_limit
        self.engine.more = partial(self._is_worth_it, start) if self.strategy.ranks < self.asked.ranks else None
        self.show("starting", None)
        self.launched = time.monotonic()
        with self.carried.while_running(start) as marker:
            outcome: Outcome | None = self.engine.run(
                partial(_train, job=self.job, strategy=self.strategy, orders=self._orders(start, marker)),
                self.strategy.share(self.job) if self.engine.hosts == 1 else None,
                self.origin.make_room if start is None and self._fresh else lambda: None,
                self._goes_on,
                self._until - time.monotonic() if self._until else None,
            )
        return outcome

    def _orders(self, start: Checkpoint | None, marker: Path | None) -> RankOrders:
        settings = self.settings
        return RankOrders(
            on_step=settings.on_step is not None,
            on_epoch=settings.on_epoch is not None,
            logs=bool(settings.log),
            folder=settings.checkpoints,
            every=settings.every,
            marker=marker,
            task=self.origin.task,
            resume=start,
            faults=tuple(self.record.faults),
            survives=settings.survives,
            fault=None if self.record.restarts else settings.fault,
        )

    def _goes_on(self, failure: RankFailed, board: Board) -> bool:
        """Whether the others can do without a dead rank; if so it is noted and its share is theirs."""
        if not may_go_on(failure, board):
            return False
        self.record.faults.append({**_fault(failure), "message": f"{failure}; the others continue"})
        self.note(f"{failure}; the others continue and share its work")
        return True

    def _start_after(self, failure: RankFailed, start: Checkpoint | None) -> Checkpoint | None:
        """Note the failure and say where to start again; raises it where that is not allowed or leads nowhere."""
        run, most = self.record, self.settings.max_restarts
        if failure.kind == "room":
            return self.origin.last() or start
        failures = [fault for fault in run.faults if fault["kind"] != RANKS_CHANGED]
        before = failures[-1] if run.restarts and failures else None
        fault = _fault(failure)
        run.faults.append(fault)
        if run.restarts - self.origin.not_ours >= most or failure.kind == "time limit":
            raise failure
        found = (self.origin.last() if self.settings.every is not None else None) or start
        step = found.step if found else 0
        if before is not None and before["step"] == failure.step and before["resumed_step"] == step:
            given_up = (
                f"gave up after {run.restarts} restart{'s' * (run.restarts != 1)}: step {failure.step} failed again"
            )
            failure.args = (f"{given_up} without a newer checkpoint than step {step}: {failure}",)
            raise failure
        run.restarts += 1
        fault["resumed_step"] = step
        self.note(f"{failure}; restart {run.restarts - self.origin.not_ours} of {most} from step {step}")
        return found

    # ------------------------------------------------------------ as many ranks as there is room for

    def _fit_to_room(self, failure: RankFailed, start: Checkpoint | None) -> str | None:
        """Take fewer ranks where what is left holds no more, and again as many as were asked for where it does.

        Returns what they talk through, or None where nothing changes."""
        asked, before, engine, settings = self.asked, self.strategy, self.engine, self.settings
        room = engine.room(processes(asked))
        ranks = min(asked.ranks, room - (processes(asked) - asked.ranks))  # servers stay as many
        if ranks == before.ranks:
            return None
        try:
            self.strategy = with_ranks(asked, ranks)
            engine.check(processes(self.strategy), str(self.strategy), settings.survives)
            self.devices = engine.devices(settings.device, max(processes(self.strategy), ranks))
            transport = self._check()
        except BadInput as refusal:
            failure.args = (f"{failure}; {refusal}",)
            raise failure from None
        step, said = start.step if start else 0, f"{ranks} rank{'s' * (ranks != 1)} instead of {before.ranks}"
        text = f"continues with {said} from step {step}: there is room for {room} of {processes(asked)} processes"
        self.record.faults.append(ranks_changed(text, before.ranks, ranks, step))
        self.record.ranks, self.record.devices = ranks, [str(device) for device in self.devices]
        self.note(text)
        return transport

    def _is_worth_it(self, start: Checkpoint | None, room: int) -> bool:
        """Whether to start again where there is room for so many processes: more ranks, and little is trained twice."""
        folder = self.settings.checkpoints
        newer = [path for path in published(folder) if start is None or step_of(path) > start.step] if folder else []
        return room > processes(self.strategy) and bool(newer)

    # ------------------------------------------------------------ what ranks say

    def hear(self, kind: str, content: Any) -> None:
        """What rank 0 says goes to the record and to the screen."""
        run = self.record
        if kind == "checkpoint":
            self.carried.keep(content)
            return
        if kind == "note":
            run.notes.append(content)
        if kind == "fault":
            run.faults.append(content)
            kind, content = "note", content["message"]
        if kind == "epoch":
            while run.epochs and run.epochs[-1]["epoch"] >= content["epoch"]:  # made again after a restart
                run.epochs.pop()
            run.epochs.append(content)
        if kind == "started":
            self.started = content
            for fault in run.faults:
                if fault.get("resumed_step") is not None and fault["resumed_seconds"] is None:
                    fault["resumed_seconds"] = content - self.began
        self.show(kind, content)

    def note(self, text: str) -> None:
        self.hear("note", text)

    def _answer(self, kind: str, figures: Any) -> bool:
        """A rank asks whether a callback ends the run."""
        callback = self.callbacks[kind]
        return callback is not None and bool(callback(figures))


def preload(strategy: Strategy, settings: FitSettings) -> tuple[str, ...]:
    """The modules that every rank imports: the server that ranks are forked from does it once."""
    return (*PRELOAD, *strategy.traits.preload, *([COMPILER] if settings.step.compile else []))


def _fault(failure: RankFailed) -> dict[str, Any]:
    known = {name: getattr(failure, name) for name in ("kind", "rank", "host", "step", "phase", "detected_seconds")}
    return {**known, "message": str(failure), "resumed_step": None, "resumed_seconds": None}


def _train(rank: Rank, job: Job, strategy: Strategy, orders: RankOrders) -> Outcome | None:
    """What every rank runs."""
    with wide_products(job.wide_products and rank.device.type == "cpu"):
        return RankTraining(job, strategy, rank, orders).run()
