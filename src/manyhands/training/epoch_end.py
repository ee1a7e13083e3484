"""The end of an epoch: its loss over all ranks, and how well the weights do on the test set."""

from __future__ import annotations

import time
from typing import Any

import torch

from ..data.order import PlannedStep
from ..record.run import available_cores
from ..strategies.contract import Worker
from ..strategies.job import Job
from ..world.rank import Rank
from .evaluate import evaluate_model
from .figures import RankFigures
from .losses import weighted_mean
from .observers import Observer


class Judge:
    """A copy of the model to evaluate weights on, made before the strategy takes the model over."""

    def __init__(self, job: Job, rank: Rank, survive: bool):
        self._job, self._rank = job, rank
        judges = rank.leads or (survive and not rank.serves)  # any rank may come to lead
        self._model = job.copies()[0] if judges and job.test is not None else None

    def test(self, weights: dict[str, Any] | None) -> dict[str, Any] | None:
        """What the record calls `test`; None where there is nothing to test, or another rank does it."""
        if self._model is None or weights is None or not self._rank.leads:
            return None
        self._rank.say("evaluation")
        self._model.load_state_dict(weights)
        model = self._model.to(self._rank.device)
        if self._rank.hosts == 1:
            torch.set_num_threads(available_cores())  # the other ranks only wait meanwhile
        try:
            job = self._job
            assert job.test is not None
            return evaluate_model(job.task, job.calling, model, job.test, self._rank.device, job.weight)
        finally:
            torch.set_num_threads(self._rank.threads)


class EpochEnd(Observer):
    """Evaluates on rank 0 and tells the caller; `weights` are those of the last epoch, on rank 0."""

    def __init__(self, rank: Rank, worker: Worker, figures: RankFigures, judge: Judge):
        self.rank, self.worker, self.figures, self.judge = rank, worker, figures, judge
        self.weights: dict[str, Any] | None = None

    def after_epoch(self, last: PlannedStep) -> None:
        rank, history = self.rank, self.figures.history
        rank.say("evaluation" if rank.leads else "wait")
        everyone = rank.gather(self.figures.losses.all(since=last.before - last.number))
        self.weights = self.worker.weights()
        if everyone is None:  # rank 0 has them; where ranks may go on without each other, all have
            return
        losses = [loss for own in everyone if own is not None for loss in own]
        entry: dict[str, Any] = {
            "epoch": last.epoch + 1,
            "loss": weighted_mean(losses),
            "seconds": self.figures.epoch_seconds,
            "samples": sum(count for _, _, count, _ in losses),
            "learning_rate": self.worker.learning_rate,
        }
        began = time.monotonic()
        test = self.judge.test(self.weights)
        if test is not None:
            history.test = test
            history.evaluation_seconds += time.monotonic() - began
            entry.update(test_accuracy=test["accuracy"], test_loss=test["loss"])
        history.add_epoch(entry)
        if rank.leads:
            rank.tell("epoch", entry)
