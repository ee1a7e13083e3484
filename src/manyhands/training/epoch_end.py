"""The end of an epoch: its loss over all ranks, and how well the weights do on the test set."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..data.order import PlannedStep
from ..record.cores import available_cores
from ..record.step_losses import as_recorded
from ..strategies.contract import Worker
from ..strategies.job import Job
from ..strategies.pieces.rank_model import full_weights
from ..world.rank import Rank
from .evaluation import Evaluation
from .figures import RankFigures
from .observers import Observer


class Judge:
    """A copy of the model to evaluate weights on, made before the strategy takes the model over."""

    def __init__(self, job: Job, rank: Rank, survive: bool):
        self._job, self._rank = job, rank
        judges = rank.leads or (survive and not rank.serves)  # any rank may come to lead
        needed = job.test is not None or job.task.ema is not None
        self._model = job.copies()[0] if judges and needed else None
        self._evaluation: Evaluation | None = None  # made with the first one; later ones are faster

    def test(self, weights: dict[str, Any] | None) -> dict[str, Any] | None:
        """What the record calls `test`; None where there is nothing to test, or another rank does it."""
        if self._job.test is None or self._model is None or weights is None or not self._rank.leads:
            return None
        self._rank.say("evaluation")
        self._model.load_state_dict(weights)
        if self._evaluation is None:
            self._evaluation = Evaluation(self._job, self._model, self._job.test, self._rank.device)
        if self._rank.hosts == 1:
            torch.set_num_threads(available_cores())  # the other ranks only wait meanwhile
        try:
            return self._evaluation.figures()
        finally:
            torch.set_num_threads(self._rank.threads)

    @torch.no_grad()
    def averaged(self, weights: dict[str, Any] | None, average: Mapping[str, Tensor]) -> dict[str, Any] | None:
        """The model by name with the average in the place of the parameters that have one; a tied one has several names."""
        if self._model is None or weights is None:
            return None
        self._model.load_state_dict(weights)
        for name, parameter in self._model.named_parameters():
            if name in average:
                parameter.copy_(average[name])
        return full_weights(self._model)


class EpochEnd(Observer):
    """Evaluates on rank 0 and tells the caller; `weights` are those of the last epoch, on rank 0, `averaged` their average."""

    def __init__(self, job: Job, rank: Rank, worker: Worker, figures: RankFigures, judge: Judge, logs: bool = False):
        self.rank, self.worker, self.figures, self.judge, self.logs = rank, worker, figures, judge, logs
        self.weights: dict[str, Any] | None = None
        self.averaged: dict[str, Any] | None = None
        self._averages, self._order = job.task.ema is not None, job.order
        self._every = 1 if worker.updater.by_figure else job.settings.eval_every  # a schedule waits for the figure
        self._last_step = job.total_steps
        self._ended: float | None = None  # when the last epoch was over, evaluation and all

    def collect(self) -> None:
        """The weights as they are now; every process takes part."""
        self.weights = self.worker.weights()
        if self._averages:
            self.averaged = self.judge.averaged(self.weights, self.worker.average())

    def begin_epoch(self) -> None:
        if self._ended is not None:  # what passed since then was spent on starting to read
            self.figures.history.pause_seconds += time.monotonic() - self._ended

    def after_epoch(self, last: PlannedStep) -> None:
        self._look_back(last)
        self._ended = time.monotonic()

    def _look_back(self, last: PlannedStep) -> None:
        rank = self.rank
        rank.say("evaluation" if rank.leads else "wait")
        done, history = last.before + 1, self.figures.history
        everyone = rank.gather(self.figures.losses.hand_over(done))
        self.collect()
        entry = None
        if everyone is not None:  # rank 0 has them; where ranks may go on without each other, all have
            history.add_losses([own for own in everyone if own is not None], done)
            entry = self._entry(last)
            history.add_epoch(entry)
            if last.number + 1 == self._order.steps_per_epoch:
                history.begin_epoch()
            if rank.leads:
                if self.logs:
                    first = last.before - last.number
                    rank.tell("losses", (first, history.losses.each, as_recorded(history.losses.means(first))))
                rank.tell("epoch", entry)
        if self.worker.updater.by_figure and last.number + 1 == self._order.steps_per_epoch:
            self._follow(entry)

    def _entry(self, last: PlannedStep) -> dict[str, Any]:
        """What the record says of an epoch."""
        history = self.figures.history
        entry: dict[str, Any] = {
            "epoch": last.epoch + 1,
            "loss": history.epoch_loss,
            "seconds": self.figures.epoch_seconds,
            "samples": history.epoch_samples,
            "learning_rate": self.worker.learning_rate,
        }
        if (last.epoch + 1) % self._every and last.before + 1 < self._last_step:
            history.test = history.ema_test = None  # those of an earlier epoch are not these weights'
            return entry
        began = time.monotonic()
        test, averaged = self.judge.test(self.weights), self.judge.test(self.averaged)
        if test is not None:
            history.test = test
            entry.update(_figures("test", test))
        if averaged is not None:
            history.ema_test = averaged
            entry.update(_figures("ema_test", averaged))
        history.evaluation_seconds += time.monotonic() - began if test is not None else 0.0
        return entry

    def _follow(self, entry: dict[str, Any] | None) -> None:
        """A schedule that goes by a figure gets that of rank 0 on every process: the test loss, else the epoch's own."""
        known = entry or {}
        figure = self.rank.agree(known.get("loss") if known.get("test_loss") is None else known["test_loss"])
        if figure is not None:
            self.worker.updater.follow(figure)


def _figures(prefix: str, test: Mapping[str, Any]) -> dict[str, Any]:
    """Of an evaluation, the numbers that an epoch's entry shows."""
    numbers = {name: value for name, value in test.items() if isinstance(value, float)}
    return {
        f"{prefix}_{name}": value
        for name, value in {"accuracy": test["accuracy"], "loss": test["loss"], **numbers}.items()
    }
