"""The training loop, written once. It runs on every process of a fit, whatever the strategy.

worker = strategy.setup(...)
for each epoch:
    barrier; start the clock
    for each step:  load -> transfer -> augment -> worker.step          (a server: worker.step(None))
                    a checkpoint is due? pause together, take it, go on
    wait for the others; stop the clock
    evaluate on rank 0; tell the caller; agree whether to go on
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import torch

from ..data import nest
from ..data.batches import Batch, Batches, TensorSource
from ..data.order import Order, Shard, Step
from ..data.pinned import sent_ahead
from ..data.resident import Resident, fits
from ..record.run import available_cores, environment, weights_digest
from ..record.summary import merge_losses, timeline
from ..strategies.contract import Strategy, Worker
from ..strategies.job import Job
from ..world.health.heartbeats import FIRST
from ..world.rank import Rank
from .capture.captured import Captured
from .capture.record_graph import SAMPLED_STEPS, capture
from .checkpoints.checkpoint import Checkpoint
from .checkpoints.snapshots import Keeping, Snapshots
from .evaluate import evaluate_model
from .figures import Tally
from .late_shares import Takeover
from .losses import Losses

PROGRESS_SECONDS = 0.1


class Figures(dict[str, Any]):
    """What callbacks see: a dict whose entries are attributes too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"no figure named {name!r}; there are: {', '.join(self)}") from None


@dataclass(frozen=True)
class Plan:
    """What a rank must know of the fit beyond the job."""

    on_step: bool = False
    on_epoch: bool = False
    progress: bool = True
    keeping: Keeping | None = None  # where and how often checkpoints are written
    resume: Checkpoint | None = None  # where to go on from
    faults: tuple[dict[str, Any], ...] = ()  # what happened in earlier attempts of this fit
    survive: bool = False  # ranks go on without a dead one and share its work
    fault: Callable[[Rank, int], None] | None = None  # what chaos does in start-up (step 0) and before every step


@dataclass
class Outcome:
    """What rank 0 gives back to the caller: the figures of the record, and the weights."""

    record: dict[str, Any]
    weights: dict[str, Any]
    timeline: list[dict[str, Any]] = field(default_factory=list)


class Training:
    """One process's part of a fit."""

    def __init__(self, job: Job, strategy: Strategy, rank: Rank, plan: Plan):
        self.job, self.strategy, self.rank, self.plan = job, strategy, rank, plan
        self.order: Order = job.order
        self.clock = rank.clock
        self.losses = Losses(rank)
        self.tally = Tally(rank, self.losses, strategy.traits.lockstep, plan.survive)
        self.takeover = Takeover(job, strategy, rank, plan.survive, watched=plan.on_step)
        self._fetch: Callable[[Batch], None] | None = None  # gathers a batch where the data lives on the device
        self._replaying: Captured | None = None
        self._not_captured: str | None = None  # why not, on a GPU
        self.stopped: str | None = None
        self._told = 0.0
        self._first_epoch = self._first_number = 0
        self._epoch_seconds = 0.0  # of the epoch a resumed fit begins in the middle of
        self._due = False
        self._random_data = job.proof.reseeds or not isinstance(job.train, TensorSource)
        self.snapshots = Snapshots(plan.keeping, job, strategy, rank, plan.resume) if plan.keeping else None
        judges = rank.leads or (plan.survive and not rank.serves)  # any rank may come to lead
        self._judge = job.copies()[0] if judges and job.test is not None else None

    def run(self) -> Outcome | None:
        rank = self.rank
        rank.say("start-up")
        if self.plan.fault is not None:
            self.plan.fault(rank, 0)
        worker = self.strategy.setup(self.job, rank)
        if self.plan.resume is not None:
            self._restore(worker, self.plan.resume)
        shard = self.strategy.feed(rank)
        self.tally.repeats = shard is not None and shard.repeats
        batches = None if shard is None else self._batches(shard)
        rank.board.row(rank.index)[FIRST] = self.clock.steps + 1
        worker = self._captured(worker, batches)  # makes a few steps of its own, and may compile the model
        started = time.monotonic()  # of the machine, so the caller's is the same
        if rank.leads:
            rank.tell("started", started)
        self.tally.begin()
        weights = None
        first = self.clock.steps
        remaining = self.job.total_steps - first
        for epoch in range(self._first_epoch, self.job.epochs):
            steps = list(islice(self.order.steps(epoch, self._first_number), max(0, remaining)))
            if not steps or self.stopped:
                break
            remaining -= len(steps)
            last = self._run_epoch(worker, batches, epoch, steps)
            weights = self._end_epoch(worker, epoch)
            ending = self.stopped is not None or remaining == 0 or epoch + 1 == self.job.epochs
            if self.snapshots is not None and last.update and (self._due or ending):
                self._take_snapshot(worker, last)
            self._first_number = 0
        if self.clock.steps == first:  # resumed at the very end: every process sees it alike
            weights = self._nothing_left(worker)
        outcome = self._outcome(worker, weights, started)
        rank.done()
        worker.close()
        return outcome

    def _batches(self, shard: Shard) -> Batches | Resident:
        """This rank's batches: out of data on its GPU where that fits, else read by the host."""
        keyed = self.job.task.augment is not None
        if isinstance(self.job.train, TensorSource) and fits(self.job.train, self.rank.device, self.rank.processes):
            return Resident(self.job.train, self.order, shard, keyed, self.rank.device)
        return Batches(
            self.job.train,
            self.order,
            shard,
            keyed=keyed,
            workers=self.job.settings.loader_workers or 0,
            most_workers=max(1, available_cores() // self.rank.processes),
            pinned=self.rank.device.type == "cuda",
            tell=lambda text: self.rank.tell("note", text) if self.rank.leads else None,
        )

    def _captured(self, worker: Worker, batches: Batches | Resident | None) -> Worker:
        """The worker with its steps recorded in a CUDA graph, where they can be."""
        self._fetch = batches.fetch if isinstance(batches, Resident) else None
        if self.rank.device.type != "cuda" or self.job.settings.capture == "off":
            return worker
        if self.plan.on_step:
            self._not_captured = "on_step looks at every step"
            return worker
        made, self._not_captured = capture(worker, batches, self.job, self.rank, self._prepare, self._first_epoch)
        if isinstance(made, Captured):
            self._replaying = made
        return made

    # ------------------------------------------------------------ steps

    def _run_epoch(self, worker: Worker, batches: Batches | Resident | None, epoch: int, steps: list[Step]) -> Step:
        """The steps of an epoch; returns the last one made."""
        feed: Iterator[Batch] | None = batches.epoch(epoch, steps[0].number) if batches else None
        if feed is not None and isinstance(batches, Batches) and self.rank.device.type == "cuda":
            feed = sent_ahead(feed, self.rank.device)
        self.takeover.begin(self.clock.steps + len(steps))
        self.rank.barrier()
        self._epoch_began = self.clock.seconds - self._epoch_seconds
        self._epoch_first = self.clock.steps - steps[0].number
        self._epoch_seconds = 0.0
        self.clock.start()
        for step in steps:
            self._run_step(worker, feed, step)
            self._due = self.snapshots is not None and self.snapshots.due(step, self.clock.steps)
            if self._asked_to_stop(worker, step):
                break
            if self._due and step is not steps[-1]:
                self._pause_for_snapshot(worker, step)
        self._help(worker)
        self._pause()
        self.losses.read()
        return step

    def _help(self, worker: Worker) -> None:
        """Rather than wait for ranks that are behind, make some of their shares."""
        for number, batch in self.takeover.at_the_end(self.clock.steps):
            seed_step(self.job.task.seed, self.rank, number - 1, self._random_data)
            self._prepare(batch)
            self.tally.samples += batch.count
            loss = worker.step(batch)
            self.clock.enter("other")
            self.losses.note(loss, number - 1)
            self.tally.share(helping=True)
            if self.plan.survive:
                self.rank.board.finish(self.rank.index, self.clock.steps, self.tally.fresh)

    def _pause(self) -> None:
        """Stop the clock once every process is here and no step is left to run."""
        if self._replaying is not None:
            self.losses.note(self._replaying.settle(), self.clock.steps - 1)
        with self.clock.during("wait"):
            self.rank.barrier()
        self.clock.stop()

    def _run_step(self, worker: Worker, feed: Iterator[Batch] | None, step: Step) -> None:
        clock = self.clock
        clock.begin_step()
        taken = feed is not None and self.takeover.is_taken(clock.steps + 1)
        batch = Batch(None, None, 0, step) if taken else next(feed) if feed is not None else None
        seed_step(self.job.task.seed, self.rank, clock.steps, self._random_data)  # reading may have drawn numbers
        if batch is not None and not taken:
            self.takeover.add_to(batch, clock.steps + 1)
            if self._replaying is None:  # a recorded step gathers and augments by itself
                self._prepare(batch)
            self.tally.samples += batch.count
        if self.plan.fault is not None:
            self.plan.fault(self.rank, clock.steps + 1)
        loss = worker.step(batch)
        clock.enter("other")
        self.losses.note(loss, clock.steps)
        clock.end_step()
        self.tally.share(made=not taken)
        if self.plan.survive:
            self.rank.board.finish(self.rank.index, clock.steps, self.tally.fresh)
        if self.plan.progress and self.rank.leads:
            self._tell_progress(step)

    def _prepare(self, batch: Batch) -> None:
        """Gather the batch on the rank's device or move it there, and augment it."""
        device = self.rank.device
        if self._fetch is not None and batch.input is None and batch.target is None:
            self._fetch(batch)
        elif device.type != "cpu":
            self.clock.enter("transfer")
            batch.input, batch.target, batch.keys = (
                nest.each(value, lambda tensor: tensor.to(device, non_blocking=True))
                for value in (batch.input, batch.target, batch.keys)
            )
        if self.job.task.augment is not None and batch.keys is not None:
            self.clock.enter("augment")
            batch.input = self.job.task.augment(batch.input, batch.keys)

    # ------------------------------------------------------------ between steps

    def _asked_to_stop(self, worker: Worker, step: Step) -> bool:
        """Let the user's on_step look at the figures; all ranks follow its word after the same step."""
        if not self.plan.on_step:
            return False
        done = self.clock.steps
        lockstep = self.strategy.traits.lockstep or self.rank.processes == 1
        with self.clock.during("other"):
            self.losses.read()
            mine = [entry for entry in self.losses.kept[-1:] if entry[0] == done - 1]
            everyone = (self.rank.gather(mine) or []) if lockstep else [mine]
            stop = False
            if self.rank.leads:
                stop = bool(self.rank.ask("on_step", self._step_figures(worker, step, everyone)))
            stop = bool(self.rank.agree(stop)) if lockstep else self._stop_together(stop, done)
        if stop:
            self.stopped = f"on_step ended the run after step {done}"
        return stop

    def _stop_together(self, stop: bool, done: int) -> bool:
        """Asynchronous ranks stop after the first step that none of them has passed."""
        board = self.rank.board
        with board.locked():
            board.finish(self.rank.index, done)
            if stop and board.stop_after < done:  # once agreed it stays: others may have stopped there already
                board.stop_after = board.first_common(self.rank.index, done)
        return board.stop_after == done

    def _step_figures(self, worker: Worker, step: Step, everyone: list[list[tuple[int, float, int]]]) -> Figures:
        losses = [entry for entries in everyone for entry in entries]
        count = sum(entry[2] for entry in losses)
        return Figures(
            step=self.clock.steps,
            epoch=step.epoch + 1,
            loss=sum(mean * number for _, mean, number in losses) / count if count else None,
            samples=step.epoch * self.order.samples + step.start + step.total,
            seconds=self.clock.seconds,
            learning_rate=worker.learning_rate,
        )

    def _tell_progress(self, step: Step) -> None:
        now = time.monotonic()
        if now - self._told < PROGRESS_SECONDS:
            return
        self._told = now
        seconds = self.clock.seconds
        samples = step.epoch * self.order.samples + step.start + step.total
        self.rank.tell(
            "progress",
            {
                "step": self.clock.steps,
                "steps": self.job.total_steps,
                "epoch": step.epoch + 1,
                "epochs": self.job.epochs,
                "loss": self.losses.kept[-1][1] if self.losses.kept else None,
                "samples_per_second": samples / seconds if seconds else None,
                "phases": list(self.clock.phases),
                "beats": [
                    (beat.rank, beat.step, beat.phase) for beat in map(self.rank.board.beat, range(self.rank.ranks))
                ],
            },
        )

    def _end_epoch(self, worker: Worker, epoch: int) -> dict[str, Any] | None:
        """Evaluate on rank 0, tell the caller, agree whether to go on; returns the weights on rank 0."""
        rank = self.rank
        rank.say("evaluation" if rank.leads else "wait")
        first = self._epoch_first
        everyone = rank.gather([entry for entry in self.losses.kept if entry[0] >= first])
        weights = worker.weights()
        stop = False
        if everyone is not None:  # on rank 0; where ranks may go on without each other, on all of them
            everyone = [item for item in everyone if item is not None]
            shifted = [{"losses": [(step - first, mean, count) for step, mean, count in item]} for item in everyone]
            counted = sum(count for item in everyone for _, _, count in item)
            losses = merge_losses(shifted, self.clock.steps - first)
            known = [(loss, step) for step, loss in enumerate(losses) if loss is not None]
            entry: dict[str, Any] = {
                "epoch": epoch + 1,
                "loss": _weighted_mean(shifted) if known else None,
                "seconds": self.clock.seconds - self._epoch_began,
                "samples": counted,
                "learning_rate": worker.learning_rate,
            }
            if self._judge is not None and rank.leads and weights is not None:
                began = time.monotonic()
                test = self.tally.test = self._evaluate(weights)
                self.tally.evaluation_seconds += time.monotonic() - began
                entry["test_accuracy"] = test["accuracy"]
                entry["test_loss"] = test["loss"]
            self.tally.add_epoch(entry)
            if rank.leads:
                rank.tell("epoch", entry)
            if rank.leads and self.plan.on_epoch:
                stop = bool(rank.ask("on_epoch", Figures(entry, step=self.clock.steps)))
        if self.plan.on_epoch and rank.agree(stop):
            self.stopped = f"on_epoch ended the run after epoch {epoch + 1}"
        return weights

    def _evaluate(self, weights: dict[str, Any]) -> dict[str, Any]:
        assert self._judge is not None
        assert self.job.test is not None
        self._judge.load_state_dict(weights)
        judge = self._judge.to(self.rank.device)
        if self.rank.hosts == 1:
            torch.set_num_threads(available_cores())  # the other ranks only wait meanwhile
        try:
            return evaluate_model(self.job.task, judge, self.job.test, self.rank.device)
        finally:
            torch.set_num_threads(self.rank.threads)

    # ------------------------------------------------------------ checkpoints

    def _pause_for_snapshot(self, worker: Worker, step: Step) -> None:
        """All processes stop their clocks, take the snapshot and go on together."""
        self._pause()
        self.losses.read()
        self._take_snapshot(worker, step)
        self.rank.barrier()
        self.clock.start()

    def _take_snapshot(self, worker: Worker, step: Step) -> None:
        assert self.snapshots is not None
        began = time.monotonic()
        self.rank.say("checkpoint")
        everyone = self.rank.gather(self.tally.measured(worker, self.snapshots.last))
        epoch_over = step.number + 1 == self.order.steps_per_epoch
        history = None
        if everyone is not None:
            everyone = [item for item in everyone if item is not None]
            epoch_seconds = 0.0 if epoch_over else self.clock.seconds - self._epoch_began
            history = self.tally.history_of(everyone, epoch_seconds, self.plan.faults)
        position = (step.epoch + 1, 0) if epoch_over else (step.epoch, step.number + 1)
        self.snapshots.take(worker, history, self.clock.steps, *position)
        self.tally.checkpoint_seconds += time.monotonic() - began

    def _restore(self, worker: Worker, checkpoint: Checkpoint) -> None:
        """Go on where a checkpoint was taken: weights and optimizer, figures so far, position in the data."""
        worker.load(checkpoint.weights, checkpoint.state)
        self.tally.restore(checkpoint, worker.updates)
        self._first_epoch, self._first_number = checkpoint.epoch, checkpoint.number
        self._epoch_seconds = self.tally.history.epoch_seconds

    def _nothing_left(self, worker: Worker) -> dict[str, Any] | None:
        """A resumed fit that had already made all its steps still gives weights and test figures."""
        weights = worker.weights()
        if self.rank.leads and self._judge is not None and self.tally.test is None:
            assert weights is not None
            self.rank.say("evaluation")
            self.tally.test = self._evaluate(weights)
        return weights

    # ------------------------------------------------------------ the end

    def _outcome(self, worker: Worker, weights: dict[str, Any] | None, started: float) -> Outcome | None:
        rank = self.rank
        if self.snapshots is not None:
            rank.say("checkpoint")
            began = time.monotonic()
            self.snapshots.finish()
            self.tally.checkpoint_seconds += time.monotonic() - began
        mine = self.tally.final(worker)
        while True:  # again where the rank that leads dies and another must deliver in its place
            everyone = rank.gather(mine)
            outcome = self._summed_up(everyone, weights, started) if rank.leads and weights is not None else None
            if rank.deliver(outcome):
                return None if self.plan.survive else outcome  # the caller has it
            weights = worker.weights()

    def _summed_up(self, everyone: list[Any] | None, weights: dict[str, Any], started: float) -> Outcome:
        assert everyone is not None
        everyone = [item for item in everyone if item is not None]
        if self.tally.test is None and self._judge is not None:  # the rank that evaluated is dead
            self.tally.test = self._evaluate(weights)
        record = self.tally.record_of(everyone)
        record["notes"] += self._capture_notes()
        record.update(
            checkpoint_seconds=self.tally.checkpoint_seconds if self.plan.keeping else None,
            weights_sha256=weights_digest(weights),
            environment=environment(),
            first_step_time=started,
            status="stopped" if self.stopped else "done",
            reason=self.stopped,
            **self._capture_record(),
        )
        return Outcome(record, weights, timeline(everyone))

    def _capture_notes(self) -> list[str]:
        """Why steps were not captured, where a person could have expected them to be."""
        reason = self._replaying.stopped if self._replaying is not None else self._not_captured
        return [f"steps are not captured in a CUDA graph: {reason}"] if reason and self.rank.processes == 1 else []

    def _capture_record(self) -> dict[str, Any]:
        """What the record says of captured steps; nothing where there is no GPU or nobody asked."""
        if self._replaying is not None:
            return {
                "capture": self._replaying.figures()["captured"],
                "phases_source": f"shares of {SAMPLED_STEPS} eager steps, total of the captured run",
            }
        if self._not_captured is not None:
            return {"capture": {"steps": 0, "steps_a_replay": 0, "reason": self._not_captured}}
        return {}


def seed_step(seed: int, rank: Rank, step: int, data_draws: bool = False) -> None:
    """Dropout and the like draw from (seed, rank, step), so a resumed run draws the same numbers.

    A Dataset may have drawn from Python's or numpy's generators too when it was read: those are set as well.
    """
    value = hash((seed, rank.index, step)) & 0x7FFF_FFFF_FFFF_FFFF
    if data_draws:
        random.seed(value)
        np.random.seed(value % 2**32)
    torch.default_generator.manual_seed(value)
    if rank.device.type == "cuda":
        torch.cuda.default_generators[rank.device.index or 0].manual_seed(value)


def _weighted_mean(items: list[dict[str, Any]]) -> float | None:
    total = sum(count for item in items for _, _, count in item["losses"])
    return sum(mean * count for item in items for _, mean, count in item["losses"]) / total if total else None


__all__ = ["Figures", "Outcome", "Plan", "Training"]
