"""Snapshots: checkpoints of a running fit.

A snapshot is taken after a step that wrote the weights, with all processes paused after that same step. So every
sample before it is in the weights and none after it, for asynchronous strategies too. What was measured so far
goes along: the record of a resumed run is that of the whole run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from ...data.order import Order, PlannedStep
from ...strategies.contract import Strategy, Worker
from ...world.rank import Rank
from ..figures import RankFigures
from ..observers import Ask, Observer
from ..orders import RankOrders
from .carried import HandedOver
from .checkpoint import Checkpoint
from .writer import Writer, not_written

AGREE_STEPS = 10  # ranks of several hosts share no board: they agree on a checkpoint every so many steps


class Snapshots(Observer):
    """When a checkpoint is due, and how it is taken. Every process of a fit has one."""

    def __init__(
        self,
        orders: RankOrders,
        order: Order,
        strategy: Strategy,
        rank: Rank,
        worker: Worker,
        figures: RankFigures,
    ):
        assert orders.every is not None
        assert orders.folder is not None
        resumed = orders.resume
        self.every, self.order = orders.every, order
        self.strategy, self.rank, self.worker, self.figures = strategy, rank, worker, figures
        self.last = resumed.step if resumed else 0  # steps behind the last checkpoint
        self._last_time = time.monotonic()
        self._due = False
        self._made: PlannedStep | None = None  # the last step made in this launch
        self._task = orders.task
        self._writer: Writer | HandedOver | None = None  # made by the rank that leads
        self._folder, self._own = orders.folder, [resumed.step] if resumed else []
        self._marker = orders.marker

    def after_step(self, step: PlannedStep) -> Ask | None:
        self._made, self._due = step, self._is_due(step)
        return Ask(pause=True) if self._due else None

    def paused(self, step: PlannedStep) -> None:
        if self._due:
            self._take(step)

    def after_epoch(self, last: PlannedStep) -> None:
        if self._due:
            self._take(last)

    def finish(self) -> None:
        """Take the last one, and wait until it is on the disk."""
        if self._made is not None and self._made.update and self.last != self._made.before + 1:
            self._take(self._made)
        with self._timed():
            if self._writer is not None:
                self._writer.wait()

    # ------------------------------------------------------------ when

    def _is_due(self, step: PlannedStep) -> bool:
        """Whether every process pauses for a checkpoint after this step; all of them answer alike."""
        done = step.before + 1
        if self.every.steps is not None:
            return step.update and done // self.every.steps > self.last // self.every.steps
        if self.rank.processes == 1:
            return step.update and self._time_is_up()
        if self.rank.hosts > 1:
            return step.update and done - self.last >= AGREE_STEPS and bool(self.rank.agree(self._time_is_up()))
        board = self.rank.board
        with board.locked():
            board.finish(self.rank.index, done)
            if self.rank.leads and board.checkpoint_after < done and self._time_is_up():
                board.checkpoint_after = self._update_from(board.first_common(self.rank.index, done))
        return board.checkpoint_after == done

    def _time_is_up(self) -> bool:
        assert self.every.seconds is not None
        return time.monotonic() - self._last_time >= self.every.seconds

    def _update_from(self, step: int) -> int:
        """The first step from this one on (both counted from 1) after which the weights are written."""
        epoch, number = divmod(step - 1, self.order.steps_per_epoch)
        group = number // self.order.accumulate + 1
        return epoch * self.order.steps_per_epoch + min(group * self.order.accumulate, self.order.steps_per_epoch)

    # ------------------------------------------------------------ how

    def _take(self, step: PlannedStep) -> None:
        """Gather weights, state and figures from every process and start writing them."""
        with self._timed():
            everyone = self.rank.gather(self.figures.since(self.last))
            epoch, number = divmod(step.before + 1, self.order.steps_per_epoch)
            history = None
            if everyone is not None:
                living = [item for item in everyone if item is not None]
                history = self.figures.history_of(living, epoch_over=number == 0)
            weights, state = self.worker.weights(), self.worker.state()
            self.last, self._last_time, self._due = step.before + 1, time.monotonic(), False
            if not self.rank.leads or weights is None or state is None or history is None:
                return  # (None on one that has come to lead only now: the next checkpoint is its own)
            self._writer = self._writer or self._new_writer()
            ranks, name = self.strategy.ranks, str(self.strategy)
            self._writer.write(Checkpoint(self.last, epoch, number, weights, state, history, self._task, name, ranks))

    def _new_writer(self) -> Writer | HandedOver:
        if self._marker is not None and not self._marker.exists():
            return HandedOver(self.rank.tell)
        return Writer(self._folder, self._failed, self._own)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        self.rank.say("checkpoint")
        began = time.monotonic()
        try:
            yield
        finally:
            self.figures.history.checkpoint_seconds += time.monotonic() - began

    def _failed(self, step: int, reason: str) -> None:
        self.rank.tell("fault", not_written(step, reason, self.rank.index))
