"""A fit on the caller's side, from its first attempt to its last: where to start, what to do after a failure."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..errors import RankFailed
from ..model import torch_internals as torch_parts
from ..record.run import Run, available_cores
from ..record.run_folder import CHECKPOINTS
from ..strategies.contract import Strategy, admit, check_stream, divides, exactness, processes, refuse
from ..strategies.job import Job
from ..world.health.heartbeats import Board
from ..world.health.stalls import StallFinder
from ..world.health.survivors import Exchange, SurvivingRank, may_go_on
from ..world.launch.processes import Place, check_descriptors, launch
from ..world.rank import COLLECTIVE_SECONDS, Rank, connect, disconnect, from_place
from ..world.shm.trial import SHARED_MEMORY, transport_for
from . import PRELOAD
from .checkpoints.checkpoint import CONDITIONS, Checkpoint, fingerprint, refuse_other_task
from .checkpoints.conditions import changes, conditions
from .checkpoints.resuming import earlier, newest, put_aside
from .proof.probe import probe
from .rank_training import Outcome, Plan, RankTraining


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
        self.checkpoints = Path(run_dir).absolute() / CHECKPOINTS if run_dir is not None else None
        self.began = began
        self.transport = "auto"

    def hear(self, kind: str, content: Any) -> None:
        """What rank 0 says goes to the record and to the screen."""
        if kind == "note":
            self.run.notes.append(content)
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

    def resumable(self) -> Checkpoint | None:
        """What `resume` goes on from: the last checkpoint, else one of a run before it that was put aside."""
        if self.checkpoints is None:
            return None
        found = self.last_checkpoint()
        if found is None:
            found = earlier(self.checkpoints, fingerprint(self.job))
            if found is None:
                self.note(f"no checkpoint to resume from in {self.checkpoints}: starting from scratch")
                return None
            self.note(f"no checkpoint to resume from in {self.checkpoints}: using one of an earlier run")
            self._goes_on_from(found)
        self._say_what_differs(found)
        return found

    def last_checkpoint(self) -> Checkpoint | None:
        """The newest whole checkpoint of this fit."""
        found = newest(self.checkpoints, self.note) if self.checkpoints is not None else None
        if found is not None:
            refuse_other_task(found, fingerprint(self.job))
            self._goes_on_from(found)
        return found

    def _goes_on_from(self, found: Checkpoint) -> None:
        where = {"step": found.step, "epoch": found.epoch + 1}
        self.run.resumed_from = {**where, "strategy": found.strategy, "ranks": found.ranks}
        self.run.faults = self.run.faults or found.history["faults"]
        self.run.epochs = [entry for entry in self.run.epochs if entry["epoch"] <= found.epoch]
        self.note(f"resuming after step {found.step} from {found.path}")

    def _say_what_differs(self, found: Checkpoint) -> None:
        now = self.plan.keeping.conditions if self.plan.keeping else conditions(self.job)
        for change in changes(found.task.get(CONDITIONS) or {}, now):
            self.note(f"the checkpoint was made under other conditions: {change}; training goes on with the new ones")
        if found.step >= self.job.total_steps:
            self.note(
                f"nothing is left to train: the checkpoint is of step {found.step} and {self.job.total_steps} steps are "
                "asked for; these are its weights"
            )

    def make_room(self, start: Checkpoint | None) -> None:
        """Put the checkpoints of an earlier run aside where this one starts from scratch and writes its own."""
        if start is None and self.plan.keeping and self.checkpoints:
            aside = put_aside(self.checkpoints)
            if aside is not None:
                self.note(f"starting from scratch: the checkpoints of an earlier run are now in {aside}")

    def try_out(self) -> None:
        """Try the job on a few samples, and say in the record what follows from it."""
        job, strategy, run = self.job, self.strategy, self.run
        probe(job, self.devices, strategy.traits.any_layout, divides(strategy))
        run.channels_last = job.channels_last
        run.exact, run.exact_reason = exactness(strategy, job)
        if run.exact and job.proof.unchecked:
            self.note(f"exact was not checked before the start: {job.proof.unchecked}")

    def look_at_torch(self, hosts: int = 1, say: bool = True) -> None:
        """Choose what ranks talk through, and note where this torch is not as the package knows it."""
        asked = self.strategy.traits.transport
        self.transport = transport_for(asked, self.devices, processes(self.strategy), hosts)
        torch_parts.look()
        text = torch_parts.note([SHARED_MEMORY] if self.transport != asked else [])
        if text and say:
            self.note(text)

    # ------------------------------------------------------------ ranks of our own

    def launch(
        self, resume: bool, max_restarts: int, stall_seconds: float | None, time_limit: float | None
    ) -> Outcome | None:
        """Start the ranks; after a failure start them again from the last checkpoint, as often as allowed."""
        if self.plan.survive and not self.strategy.traits.survives:
            reason = "cannot go on without a rank (on_death=continue); hogwild and parameter_server:mode=async can"
            raise refuse(self.strategy, reason)
        self.look_at_torch()
        start = self.resumable() if resume else None
        check_stream(self.strategy, self.job, self.plan.survive)
        self.try_out()
        admit(self.strategy, self.job, self.devices)
        self.job.prepared = self.strategy.prepare(self.job)
        self.run.threads = self.threads or max(1, available_cores() // self.strategy.ranks)
        check_descriptors(processes(self.strategy))
        self.make_room(start)  # only now: what is refused must leave everything as it was
        until = time.monotonic() + time_limit if time_limit else None
        while True:
            try:
                return self._attempt(start, StallFinder(stall_seconds), until - time.monotonic() if until else None)
            except RankFailed as failure:
                self.began = time.monotonic()
                start = self._start_after(failure, max_restarts, start)

    def _attempt(self, start: Checkpoint | None, find_stall: StallFinder, time_limit: float | None) -> Outcome | None:
        strategy = self.strategy
        plan = replace(self.plan, resume=start, faults=tuple(self.run.faults))
        if self.run.restarts:
            plan = replace(plan, fault=None)
        exchange = Exchange(self.answer)
        results = launch(
            partial(
                rank_body,
                job=self.job,
                strategy=strategy,
                devices=self.devices,
                plan=plan,
                transport=self.transport,
            ),
            processes(strategy),
            ranks=min(strategy.ranks, processes(strategy)),
            threads=self.run.threads or 1,
            shared=strategy.share(self.job),
            preload=(*PRELOAD, *strategy.traits.preload),
            on_tell=lambda _, kind, content: self.hear(kind, content),
            on_ask=exchange,
            watch=find_stall,
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
        found = (self.last_checkpoint() if self.plan.keeping else None) or start
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
    transport: str,
) -> Outcome | None:
    """What every launched process runs."""
    device = devices[place.index]
    if device.type == "cuda":
        torch.cuda.set_device(device)
    rank, store = from_place(place, device, SurvivingRank if plan.survive else Rank)
    rank.devices = devices
    connect(rank, transport, store, COLLECTIVE_SECONDS)
    try:
        return RankTraining(job, strategy, rank, plan).run()
    finally:
        disconnect(rank)
