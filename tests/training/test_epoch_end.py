"""The end of an epoch: schedules that go by its loss."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

import manyhands as mh
from manyhands.strategies import make_strategy
from manyhands.training.run_fit import run_fit
from manyhands.training.settings import FitSettings
from tests.conftest import distance, make_task, quick_fit


def plateau(optimizer: torch.optim.Optimizer, updates: int, **options: Any) -> ReduceLROnPlateau:
    """Cuts the rate after every epoch: no loss is better than one ten times as good."""
    return ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.9, **options)


class Noting:
    """One's own schedule that needs a figure, and makes it the rate."""

    def __init__(self, optimizer: torch.optim.Optimizer, updates: int) -> None:
        self.optimizer = optimizer

    def step(self, loss: float) -> None:
        self.optimizer.param_groups[0]["lr"] = loss / 100


def rates(run: Any) -> list[float]:
    return [entry["learning_rate"] for entry in run.epochs]


@pytest.mark.parametrize(
    "strategy",
    [
        "ddp",
        pytest.param("pipeline", marks=pytest.mark.soak),
        "parameter_server",
        pytest.param("hogwild", marks=pytest.mark.soak),
        pytest.param("local_sgd", marks=pytest.mark.soak),
    ],
)
def test_every_process_follows_the_loss_of_an_epoch(strategy: str) -> None:
    """It was refused: schedules moved on after every update, without a figure."""
    single, run = alone(), quick_fit(make_task(schedule=plateau, epochs=4), strategy, ranks=2)
    assert rates(single) == rates(run) == [0.1, 0.1, 0.05, 0.025]  # the first loss is better than none
    if run.exact:
        assert distance(single, run) < 1e-5


@cache
def alone() -> Any:
    return quick_fit(make_task(schedule=plateau, epochs=4))


def test_it_moves_between_epochs_alone() -> None:
    plain = quick_fit(make_task(epochs=2))
    assert [entry["loss"] for entry in alone().epochs[:2]] == [entry["loss"] for entry in plain.epochs]


def test_the_figure_is_the_test_loss_or_that_of_training() -> None:
    tested, untested = quick_fit(make_task(schedule=Noting)), quick_fit(make_task(schedule=Noting, test=None))
    assert rates(tested)[1:] == [entry["test_loss"] / 100 for entry in tested.epochs[:-1]]
    assert rates(untested)[1:] == [entry["loss"] / 100 for entry in untested.epochs[:-1]]


@pytest.mark.parametrize("stop", [51, pytest.param(68, marks=pytest.mark.soak)])
def test_a_resumed_schedule_has_seen_each_epoch_once(stop: int, tmp_path: Path) -> None:
    """A fit that ends in the middle of an epoch shows its schedule no figure: the epoch is not over."""
    task = make_task(schedule=plateau, optimizer=partial(torch.optim.Adam, lr=0.01))
    whole = quick_fit(task, "ddp", ranks=2)
    quick_fit(task, "ddp", ranks=2, run_dir=tmp_path, checkpoint_every=17, max_steps=stop)
    resumed = quick_fit(task, "ddp", ranks=2, run_dir=tmp_path, checkpoint_every=17, resume=True)
    assert rates(resumed) == rates(whole)
    assert resumed.weights_sha256 == whole.weights_sha256


def test_several_schedules_in_a_row_move_once_per_update() -> None:
    def both(optimizer: torch.optim.Optimizer, updates: int) -> LRScheduler:
        warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=10)
        rest = torch.optim.lr_scheduler.ConstantLR(optimizer, 0.5, total_iters=updates)
        return torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, rest], milestones=[20])

    assert rates(quick_fit(make_task(schedule=both, epochs=1))) == [0.05]


def test_evaluation_every_few_epochs_and_at_the_end() -> None:
    task = make_task(epochs=5)
    rare = mh.fit(task, eval_every=3, progress=False)
    often = mh.fit(task, progress=False)
    assert [entry["epoch"] for entry in rare.epochs if "test_accuracy" in entry] == [3, 5]
    assert rare.test == often.test
    assert rare.weights_sha256 == often.weights_sha256
    with pytest.raises(mh.BadInput, match=r"eval_every must be a whole number of at least 1 \(found 0\)"):
        mh.fit(task, eval_every=0)


def test_an_evaluation_may_be_of_a_few_batches_alone() -> None:
    """What evaluating holds, in the short fits of `plan`."""
    run = run_fit(
        make_task(eval_batch_size=16), make_strategy("single"), FitSettings.of(eval_batches=1, progress=False)
    )
    assert run.test is not None
    assert run.test["samples"] == 16


def test_a_fit_that_is_stopped_is_evaluated_where_it_stopped() -> None:
    """Between evaluations the figures of an earlier epoch would have stood for the last weights."""
    task = make_task(epochs=5)
    run = mh.fit(task, eval_every=2, on_epoch=lambda entry: entry["epoch"] == 3, progress=False)
    assert run.weights is not None
    assert run.test == mh.evaluate(task, run.weights)


def test_a_schedule_that_goes_by_a_figure_gets_it_after_every_epoch() -> None:
    task = make_task(epochs=3, schedule=lambda optimizer, total: ReduceLROnPlateau(optimizer))
    run = mh.fit(task, eval_every=3, progress=False)
    assert all("test_accuracy" in entry for entry in run.epochs)


@pytest.mark.parametrize("keywords", [{"eval_every": 3}, {"eval_every": 3, "max_steps": 20}])
def test_the_run_has_the_last_weights_however_seldom_they_are_tested(keywords: dict[str, Any]) -> None:
    task = make_task(epochs=4)
    run, plain = quick_fit(task, **keywords), quick_fit(task, max_steps=keywords.get("max_steps"))
    untested = quick_fit(task.replace(test=None), max_steps=keywords.get("max_steps"))
    assert run.weights_sha256 == plain.weights_sha256 == untested.weights_sha256
    assert run.test == plain.test
