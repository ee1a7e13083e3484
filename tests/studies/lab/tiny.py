"""An experiment of two small parts for the tests of the frame, and fits that only write down that they were asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

import manyhands as mh
from manyhands.record.run import Run, environment
from manyhands.studies.lab import Column, Curve, Experiment, Part, Scale, Table, Verdict, by_epoch, running

QUICK, WHOLE = Scale(quick=True, cores=2, gpus=0), Scale(quick=False, cores=2, gpus=0)


def task() -> mh.Task:
    data = torch.randn(40, 6), torch.randint(0, 3, (40,))
    return mh.Task(nn.Linear(6, 3), data, nn.functional.cross_entropy, torch.optim.SGD, test=data, batch_size=10)


def judge(table: Table) -> Verdict:
    gain = table.ratio("seconds", "slow", "fast")
    if gain is None:
        return Verdict(None, "nothing.", "a row is missing.")
    return Verdict(gain.low > 1, f"{gain.middle:.1f}x.", "it is so.")


def tiny(*parts: Part, **changes: Any) -> Experiment:
    rows: Sequence[Part] = parts or (Part("slow", task), Part("fast", task, batch_size=20))
    fields: dict[str, Any] = {
        "name": "tiny",
        "title": "Tiny",
        "claim": "slow is slower than fast.",
        "source": "nowhere",
        "parts": lambda scale: rows,
        "columns": (Column("seconds", "total s", lambda run, others: run.seconds),),
        "judge": judge,
        "curves": (Curve("Loss", "epoch", "loss", lambda table: by_epoch(table, "loss", 1.0)),),
        "seeds": 2,
        "quick_seeds": 1,
        "quick_note": "less of everything",
    }
    return Experiment(**{**fields, **changes})


class Fits:
    """In place of fits: what was asked for, in order, as (folder, seed); some of them end with a problem."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.asked: list[tuple[str, int]] = []
        self.problems: dict[tuple[str, int], BaseException] = {}  # by label and seed
        monkeypatch.setattr(running, "run_fit", self.fit)

    def fit(self, task: mh.Task, strategy: Any, settings: Any) -> Run:
        label = settings.run_dir.parent.name.rpartition("-")[0]
        self.asked.append((label, task.seed))
        if (label, task.seed) in self.problems:
            raise self.problems[label, task.seed]
        run = Run("tiny", strategy.name, environment=environment(), seconds=2.0 / (1 + (label == "fast")))
        run.epochs = [{"epoch": 1, "loss": 0.5, "seconds": 1.0, "samples": 40}]
        run.weights = {"weight": torch.ones(2)}
        settings.on_epoch(run.epochs[0])
        run.save(settings.run_dir)
        return run

    def since(self) -> list[tuple[str, int]]:
        """Those asked for since the last question."""
        found, self.asked = self.asked, []
        return found
