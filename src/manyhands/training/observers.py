"""Observers: whoever looks on while the loop runs. Each overrides the verbs it needs; the loop calls no others."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..data.batches import Batch
from ..data.order import PlannedStep
from ..strategies.contract import Loss
from ..strategies.job import Job
from ..world.rank import Rank
from .losses import Losses

PROGRESS_SECONDS = 0.1


class Ask(NamedTuple):
    """What an observer may ask of the loop: all processes do as asked after the same step, so all must ask alike."""

    pause: bool = False  # `paused` is called when all processes are there and the clock stands still
    stop: str | None = None  # why the fit ends


class Observer:
    """The moments of a fit, in the order in which they come."""

    def begin_epoch(self) -> None:
        """All processes are here, and the clock is about to start."""

    def before_work(self, step: PlannedStep) -> None:
        """The batch of a step is there."""

    def after_work(self, step: PlannedStep, batch: Batch | None, loss: Loss | Sequence[Loss] | None) -> None:
        """A worker has worked: on its own batch, on one of another rank (`batch.own`), or on what it had put off (None)."""

    def after_step(self, step: PlannedStep) -> Ask | None:
        """A step is over, its time taken."""
        return None

    def paused(self, step: PlannedStep) -> None:
        """Somebody asked for a pause after this step."""

    def after_epoch(self, last: PlannedStep) -> Ask | None:
        """All processes are here after `last`, and the clock stands still."""
        return None

    def finish(self) -> None:
        """No step comes after this."""


class Faults(Observer):
    """What chaos does on this rank before the work of each step."""

    def __init__(self, rank: Rank, fault: Callable[[Rank, int], None]):
        self._rank, self._fault = rank, fault

    def before_work(self, step: PlannedStep) -> None:
        self._fault(self._rank, step.before + 1)


class ProgressReports(Observer):
    """Tells the caller now and then how far the fit is."""

    def __init__(self, job: Job, rank: Rank, losses: Losses):
        self._job, self._rank, self._losses = job, rank, losses
        self._told = 0.0

    def after_step(self, step: PlannedStep) -> None:
        now = time.monotonic()
        if now - self._told < PROGRESS_SECONDS or not self._rank.leads:
            return
        self._told = now
        clock, board = self._rank.clock, self._rank.board
        seconds, latest = clock.seconds, self._losses.latest
        content = {
            "step": clock.steps,
            "steps": self._job.total_steps,
            "epoch": step.epoch + 1,
            "epochs": self._job.epochs,
            "loss": latest[1] if latest and latest[3] else None,  # a share of nothing but padding has none
            "samples_per_second": self._job.order.samples_up_to(step) / seconds if seconds else None,
            "phases": list(clock.phases),
            "beats": [(beat.rank, beat.step, beat.phase) for beat in map(board.beat, range(self._rank.ranks))],
        }
        self._rank.tell("progress", content)
