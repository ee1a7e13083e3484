"""The training loop, written once. It runs on every process of a fit, whatever the strategy.

for each epoch:
    the feed begins; all processes meet; the clock starts
    for each step:  batch = feed.next -> worker.step                (a server's batch is None)
                    an observer asks for a pause? settle, meet, stop the clock, let it look, go on together
    make what others left undone; settle, meet, stop the clock
    observers look at the weights; one may ask for the end

What is read is the feed's business, what a step is the worker's, and everything else is done by observers
(observers.py): figures, progress, evaluation, checkpoints, the user's callbacks, faults on purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..data.feed import Feed
from ..data.order import PlannedStep
from ..record.clock import Clock
from ..strategies.contract import Worker
from .observers import Ask, Observer


class Loop:
    """The steps of one process; `meet` waits until all processes are there."""

    def __init__(
        self, feed: Feed, worker: Worker, clock: Clock, observers: Sequence[Observer], meet: Callable[[], None]
    ):
        self.feed, self.worker, self.clock, self.meet = feed, worker, clock, meet
        self.stopped: str | None = None  # why, where an observer asked for the end
        self._begin_epoch = _overriding(observers, "begin_epoch")
        self._before_work = _overriding(observers, "before_work")
        self._after_work = _overriding(observers, "after_work")
        self._after_step = _overriding(observers, "after_step")
        self._paused = _overriding(observers, "paused")
        self._after_epoch = _overriding(observers, "after_epoch")
        self._finish = _overriding(observers, "finish")

    def run(self, epochs: Iterable[Sequence[PlannedStep]]) -> None:
        """Train these steps, an epoch at a time."""
        for steps in epochs:
            last = self._run_epoch(steps)
            for after_epoch in self._after_epoch:
                self._heed(after_epoch(last))
            if self.stopped is not None:
                break
        for finish in self._finish:
            finish()

    def _run_epoch(self, steps: Sequence[PlannedStep]) -> PlannedStep:
        """The steps of an epoch; returns the last one made."""
        self.feed.begin(steps)
        self.meet()
        for begin_epoch in self._begin_epoch:
            begin_epoch()
        self.clock.start()
        for step in steps:
            self._run_step(step)
            pause = False
            for after_step in self._after_step:
                pause = self._heed(after_step(step)) or pause
            if self.stopped is not None:
                break
            if pause and step != steps[-1]:
                self._pause(step)
                for paused in self._paused:
                    paused(step)
                self.meet()
                self.clock.start()
        for batch in self.feed.extra(step):
            loss = self.worker.step(batch)
            self.clock.enter("other")
            for after_work in self._after_work:
                after_work(batch.step, batch, loss)
        self._pause(step)
        return step

    def _run_step(self, step: PlannedStep) -> None:
        clock = self.clock
        clock.begin_step()
        batch = self.feed.next(step)
        for before_work in self._before_work:
            before_work(step)
        loss = self.worker.step(batch)
        clock.enter("other")
        for after_work in self._after_work:
            after_work(step, batch, loss)
        clock.end_step()

    def _pause(self, step: PlannedStep) -> None:
        """Stop the clock once every process is here and no step is left to run."""
        losses = self.worker.settle()
        if losses:
            for after_work in self._after_work:
                after_work(step, None, losses)
        with self.clock.during("wait"):
            self.meet()
        self.clock.stop()

    def _heed(self, ask: Ask | None) -> bool:
        """Note that the end was asked for; says whether a pause was."""
        if ask is None:
            return False
        self.stopped = self.stopped or ask.stop
        return ask.pause


def _overriding(observers: Sequence[Observer], verb: str) -> tuple[Callable[..., Any], ...]:
    """This verb of those observers that have their own: a step does not call what does nothing."""
    return tuple(getattr(one, verb) for one in observers if getattr(type(one), verb) is not getattr(Observer, verb))
