"""Weak scaling: the batch of every row, and what its note says of the learning rate."""

from __future__ import annotations

import importlib
from functools import partial

import pytest
import torch
from torch import nn

import manyhands as mh
from manyhands.record.run import Run
from manyhands.strategies.contract import Strategy
from manyhands.studies.contenders import contenders
from manyhands.studies.growing_batch import give_tasks
from manyhands.task import Task
from manyhands.training.settings import FitSettings

compare_module = importlib.import_module("manyhands.studies.compare")


def task(rate: float = 0.1, batch: int = 32) -> Task:
    data = torch.zeros(64, 4), torch.zeros(64, dtype=torch.int64)
    return Task(nn.Linear(4, 2), data, nn.functional.cross_entropy, partial(torch.optim.SGD, lr=rate), batch_size=batch)


def test_every_row_has_the_tasks_batch_times_its_ranks() -> None:
    rows = contenders(["ddp"], [1, 2, 4], 1)
    give_tasks(task(), rows, True)
    assert [(row.label, row.task.batch_size, row.batch_per_rank) for row in rows] == [
        ("single, 1 thread", 32, 32),
        ("ddp on 1 rank", 32, 32),
        ("ddp on 2 ranks", 64, 32),
        ("ddp on 4 ranks", 128, 32),
    ]
    assert rows[-1].notes == [
        "batch of 128: 32 for each of 4 ranks; the learning rate stays at 0.1, as for a batch of 32"
    ]
    assert rows[0].notes == []


def test_a_recipe_may_change_the_rate() -> None:
    rows = contenders(["ddp"], [1, 2], 1)
    give_tasks(task(), rows, lambda batch: task(0.1 * batch / 32, batch))
    assert rows[-1].notes == [
        "batch of 64: 32 for each of 2 ranks; the task's recipe makes the learning rate 0.2 instead of 0.1"
    ]


def test_an_optimizer_that_wants_the_real_parameters() -> None:
    def picky(parameters: object) -> torch.optim.Optimizer:
        raise ValueError("not these")

    rows = contenders(["ddp"], 2, 1)
    give_tasks(task().replace(optimizer=picky), rows, True)
    assert rows[-1].notes[0].endswith("; the learning rate is what the task gives for that batch")


def test_a_batch_larger_than_the_data_is_noted() -> None:
    """Forty ranks of 16 samples, with 320 to train on, were reported as a batch of 640."""
    runs = mh.compare(task(), ["ddp"], ranks=[1, 4], scale_batch=True, rounds=0, threads=1, progress=False)
    assert [any("the training data has" in note for note in run.notes) for run in runs] == [False, False, True]
    assert runs[-1].notes[-1] == (
        "the training data has 64 samples, fewer than a batch of 128: each of 4 ranks had about 16 of them, "
        "so this row does not show how a growing batch scales"
    )


def test_without_it_all_rows_train_the_same_task() -> None:
    rows, given = contenders(["ddp"], [1, 2], 1), task()
    give_tasks(given, rows, False)
    assert all(row.task is given and row.batch_per_rank is None and row.notes == [] for row in rows)


def test_a_first_loss_of_another_batch_is_no_fault() -> None:
    """ddp on two ranks begins with the mean over twice the samples: it was said not to train what one process trains."""
    small = mh.load_task("glyphs:train=128,test=20")
    runs = mh.compare(small, ["ddp"], ranks=2, threads=1, scale_batch=True, rounds=0, max_steps=2, progress=False)
    assert [(run.batch_size, run.batch_per_rank, run.status) for run in runs] == [(32, 32, "done"), (64, 32, "done")]
    assert runs[0].losses[0] != runs[1].losses[0]
    assert not any("begins with a loss" in note for note in runs[1].notes)


def test_rows_left_with_a_few_steps_are_measured_over_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest batch was the whole data: its rounds were one step each, the slow first one."""
    made = []
    real = compare_module.run_fit

    def noted(task: Task, strategy: Strategy, settings: FitSettings) -> Run:
        made.append(run := real(task, strategy, settings))
        return run

    monkeypatch.setattr(compare_module, "run_fit", noted)
    runs = mh.compare(
        task(), "ddp", ranks=2, threads=1, scale_batch=True, rounds=1, round_seconds=0.01, progress=False, max_steps=7
    )
    assert [run.steps for run in runs] == [2, 1]
    assert [run.steps for run in made[2:]] == [7, 7]
