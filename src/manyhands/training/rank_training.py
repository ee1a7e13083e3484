"""One process's part of a fit: its feed, its worker and the observers are put together, and the loop runs."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from ..data.feed import Feed, RankFeed
from ..data.stream import StreamSource
from ..record.cores import available_cores
from ..record.run import environment, weights_digest
from ..record.summary import timeline
from ..strategies.contract import Strategy, Worker
from ..strategies.job import Job
from ..world.health.heartbeats import FIRST
from ..world.rank import Rank
from .callbacks import OnEpoch, OnStep
from .capture.capture import Capture, capture
from .checkpoints.snapshots import Snapshots
from .epoch_end import EpochEnd, Judge
from .figures import RankFigures
from .late_shares import LateShares
from .loop import Loop
from .observers import Faults, Observer, ProgressReports
from .orders import RankOrders


@dataclass
class Outcome:
    """What rank 0 gives back to the caller: the figures of the record, and the weights."""

    record: dict[str, Any]
    weights: dict[str, Any]
    ema_weights: dict[str, Any] | None = None
    timeline: list[dict[str, Any]] = field(default_factory=list)


class RankTraining:
    """The parts of one process, and what becomes of them at the end."""

    def __init__(self, job: Job, strategy: Strategy, rank: Rank, orders: RankOrders):
        self.job, self.strategy, self.rank, self.orders = job, strategy, rank, orders
        rank.say("start-up")
        if orders.fault is not None:
            orders.fault(rank, 0)
        self.judge = Judge(job, rank, orders.survives)
        worker = strategy.setup(job, rank)
        feed = self._feed()
        self.figures = self._figures(worker, feed)
        rank.board.row(rank.index)[FIRST] = rank.clock.steps + 1
        self.capture = self._captured(worker, feed)  # makes a few steps of its own, and may compile the model
        self.worker = self.figures.worker = self.capture.worker
        self.epoch_end = EpochEnd(job, rank, self.worker, self.figures, self.judge, orders.logs)
        self.loop = Loop(self._with_late_shares(feed), self.worker, rank.clock, self._observers(), rank.barrier)

    def run(self) -> Outcome | None:
        rank, first = self.rank, self.rank.clock.steps
        if rank.leads:
            rank.tell("started", time.monotonic())  # of the machine, so a caller on it has the same
        self.figures.marks.begin(self.figures.made)
        self.loop.run(self.job.order.epochs(first, self.job.total_steps))
        # resumed at the very end no epoch was trained, as every process sees: the weights are asked for here
        if rank.clock.steps == first:
            self.epoch_end.collect()
        outcome = self._outcome()
        rank.done()
        self.worker.close()
        return outcome

    # ------------------------------------------------------------ the parts

    def _feed(self) -> RankFeed:
        """What this process reads."""
        job, rank = self.job, self.rank
        return RankFeed(
            job.train,
            job.order,
            self.strategy.feed(rank),
            clock=rank.clock,
            device=rank.device,
            augment=job.task.augment,
            process=rank.index,
            sharing=rank.processes,
            workers=job.settings.loader_workers or 0,
            most_workers=max(1, available_cores() // rank.processes),
            draws=job.proof.reseeds,
            keep=job.settings.keep_batches,
            tell=lambda text: rank.tell("note", text) if rank.leads else None,
        )

    def _with_late_shares(self, feed: RankFeed) -> Feed:
        job, rank = self.job, self.rank
        # on_step looks at every step of every rank in its order; a stream cannot be asked for another rank's samples
        alone = rank.ranks == 1 or job.order.accumulate > 1 or self.orders.on_step or job.settings.keep_batches
        able = not rank.serves and rank.shared is not None  # over several hosts ranks do not see each other's board
        helps = self.strategy.traits.helps and able and not alone and not isinstance(job.train, StreamSource)
        return LateShares(feed, rank, helps, self.orders.survives) if helps or self.orders.survives else feed

    def _figures(self, worker: Worker, feed: RankFeed) -> RankFigures:
        """The count of what is done: from the start, or from where a checkpoint was taken, which the worker loads."""
        repeats = feed.shard is not None and feed.shard.repeats
        figures = RankFigures(self.rank, worker, self.strategy.traits.lockstep, self.orders.survives, repeats)
        if self.orders.resume is not None:
            worker.load(self.orders.resume.weights, self.orders.resume.state)
            figures.restore(self.orders.resume)
        figures.history.faults = list(self.orders.faults)
        return figures

    def _captured(self, worker: Worker, feed: RankFeed) -> Capture:
        """The worker with its steps recorded in a CUDA graph, where they can be."""
        if self.rank.device.type != "cuda" or self.job.settings.capture == "off":
            return Capture(worker)
        if self.orders.on_step:
            return Capture(worker, "on_step looks at every step")
        return capture(worker, feed, self.job, self.rank)

    def _observers(self) -> list[Observer]:
        """In the order in which they are called."""
        orders, rank, figures = self.orders, self.rank, self.figures
        observers: list[Observer] = [figures, self.epoch_end]
        if orders.fault is not None:
            observers.append(Faults(rank, orders.fault))
        if rank.leads or orders.survives:
            observers.append(ProgressReports(self.job, rank, figures.losses))
        if orders.on_epoch:
            observers.append(OnEpoch(rank, figures))
        if orders.every is not None:
            order, strategy = self.job.order, self.strategy
            observers.append(Snapshots(orders, order, strategy, rank, self.worker, figures))
        if orders.on_step:
            observers.append(OnStep(rank, self.job.order, self.worker, figures))
        return observers

    # ------------------------------------------------------------ the end

    def _outcome(self) -> Outcome | None:
        mine = self.figures.final()
        while True:  # again where the rank that leads dies and another must deliver in its place
            everyone = self.rank.gather(mine)
            outcome, weights = None, self.epoch_end.weights
            if self.rank.leads and weights is not None and everyone is not None:
                outcome = self._summed_up([item for item in everyone if item is not None], weights)
            if self.rank.deliver(outcome):
                return None if self.orders.survives else outcome  # the caller has it
            self.epoch_end.collect()

    def _summed_up(self, everyone: list[dict[str, Any]], weights: dict[str, Any]) -> Outcome:
        history = self.figures.history
        if history.test is None:  # nothing was left to train, or the rank that evaluated is dead
            history.test = self.judge.test(weights)
        averaged = self.epoch_end.averaged
        if history.ema_test is None:
            history.ema_test = self.judge.test(averaged)
        record = self.figures.record_of(everyone)
        if self.rank.processes == 1:
            record["notes"] += self.capture.notes()
        record.update(
            checkpoint_seconds=history.checkpoint_seconds if self.orders.every else None,
            weights_sha256=weights_digest(weights),
            ema=averaged
            and {"decay": self.job.task.ema, "test": history.ema_test, "weights_sha256": weights_digest(averaged)},
            environment=environment(),
            transport=self.rank.transport,
            status="stopped" if self.loop.stopped else "done",
            reason=self.loop.stopped,
            **self.capture.record(),
        )
        return Outcome(record, weights, averaged, timeline(everyone))
