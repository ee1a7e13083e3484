"""An average of the weights: torch's own AveragedModel in a hand-written loop, under every strategy and after a resume."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import manyhands as mh
from manyhands.record.run import weights_digest
from manyhands.strategies.job import StepSettings, trained_parameters
from manyhands.training.build import build
from tests.conftest import make_task, quick_fit

DECAY = 0.9
RANKS = {"single": 1, "hybrid": 4}


class Frozen(nn.Module):
    """A tied weight, a frozen layer, a buffer that follows the batches, and a parameter the loss never reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.again, self.head = nn.Linear(20, 20), nn.Linear(20, 20), nn.Linear(20, 3)
        self.again.weight = self.into.weight
        self.again.bias.requires_grad_(False)
        self.norm = nn.BatchNorm1d(20)
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(torch.tanh(self.again(torch.tanh(self.into(x))))))


class Late(nn.Module):
    """A parameter that has its first gradient only after some updates: what the optimizer keeps of it begins then."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.late = nn.Linear(20, 3), nn.Parameter(torch.ones(3))
        self.passes = 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += self.training
        return self.inner(x) * (self.late if self.passes > 3 else 1)


def task_with(**changes: Any) -> mh.Task:
    return make_task(**{"ema": DECAY, "epochs": 2, "test": None, **changes})


def by_hand(task: mh.Task) -> dict[str, Tensor]:
    """A plain loop over the same batches, with torch's average."""
    job = build(task, StepSettings())
    model, optimizer = job.model, task.optimizer(trained_parameters(job.model))
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
    for epoch in range(task.epochs):
        for step in job.order.steps(epoch):
            input, target = job.train.gather(job.order.indices(step))
            job.calling.loss_of(model(input), target).backward()
            optimizer.step()
            optimizer.zero_grad()
            average.update_parameters(model)
    return average.module.state_dict()


def apart(some: Any, others: Any) -> float:
    assert some.keys() == others.keys()
    return max(float((some[name].double() - others[name].double()).abs().max()) for name in some)


@pytest.mark.parametrize(
    "strategy",
    [
        "ddp", "parameter_server:servers=2",
        *(pytest.param(name, marks=pytest.mark.soak) for name in ("single", "locked", "pipeline", "fsdp")),
    ],
)  # fmt: skip
def test_the_average_is_that_of_a_loop_by_hand_and_changes_nothing(strategy: str) -> None:
    task = task_with(kind="tied", optimizer=partial(torch.optim.Adam, lr=1e-3, amsgrad=True))
    run = quick_fit(task, strategy, ranks=RANKS.get(strategy, 2))
    assert apart(run.ema_weights, by_hand(task)) < 1e-6
    assert apart(run.ema_weights, run.weights) > 1e-3
    if strategy in ("single", "ddp"):
        plain = quick_fit(task.replace(ema=None), strategy, ranks=RANKS.get(strategy, 2))
        assert run.weights_sha256 == plain.weights_sha256


@pytest.mark.parametrize("model", [Frozen, Late])
def test_parameters_that_are_tied_frozen_unreached_or_late(model: type[nn.Module]) -> None:
    """State of one's own in the optimizer would keep Adam from beginning its state for a late parameter."""
    task = task_with(model=model, optimizer=partial(torch.optim.Adam, lr=1e-2))
    run = quick_fit(task)
    assert apart(run.ema_weights, by_hand(task)) < 1e-6


@pytest.mark.parametrize(
    "strategy",
    [
        "hogwild:optimizer=shared",
        pytest.param("locked:mode=free", marks=pytest.mark.soak),
        pytest.param("parameter_server:mode=async", marks=pytest.mark.soak),
        "local_sgd",
    ],
)
def test_strategies_that_are_not_exact_have_an_average_near_their_weights(strategy: str) -> None:
    """Shared optimizer state starts at zeros: an average in it was pulled towards zero."""
    run = quick_fit(task_with(test=make_task().test), strategy, ranks=2)
    assert run.ema is not None
    assert run.test is not None
    assert 0 < apart(run.ema_weights, run.weights) < 0.2
    assert run.ema["test"]["loss"] == pytest.approx(run.test["loss"], rel=0.5)  # of ranks that update as they come


@pytest.mark.parametrize(
    ("first", "then"),
    [
        pytest.param("single", "single", marks=pytest.mark.soak),
        pytest.param("ddp", "ddp", marks=pytest.mark.soak),
        ("fsdp", "parameter_server:servers=2"),
    ],
)
def test_a_resumed_average_goes_on_to_the_last_bit_or_under_another_strategy(
    first: str, then: str, tmp_path: Path
) -> None:
    task = task_with(optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9))
    whole = quick_fit(task, then, ranks=RANKS.get(then, 2))
    quick_fit(task, first, ranks=RANKS.get(first, 2), run_dir=tmp_path, checkpoint_every=7, max_steps=40)
    resumed = quick_fit(task, then, ranks=RANKS.get(then, 2), run_dir=tmp_path, checkpoint_every=7, resume=True)
    assert resumed.resumed_from
    assert apart(resumed.ema_weights, whole.ema_weights) <= (0 if first == then else 1e-6)
    assert not any("ema" in note for note in resumed.notes)


def test_resumed_from_a_run_without_one_it_begins_with_the_next_update_and_says_so(tmp_path: Path) -> None:
    plain = task_with(ema=None)
    quick_fit(plain, run_dir=tmp_path, checkpoint_every=10, max_steps=67)
    resumed = quick_fit(task_with(), run_dir=tmp_path, checkpoint_every=10, resume=True)
    assert apart(resumed.ema_weights, resumed.weights) == 0  # of one update
    assert "the checkpoint holds no average of the weights (ema): it begins with the next update" in resumed.notes
    again = quick_fit(plain, run_dir=tmp_path, checkpoint_every=10, resume=True)
    assert again.ema is None
    assert again.weights_sha256 == quick_fit(plain).weights_sha256


def test_of_16_bit_weights_the_average_is_kept_in_32() -> None:
    """Steps of a thousandth are below what bfloat16 can tell apart: the average stood still."""
    task = task_with(
        model=lambda: nn.Linear(20, 3).bfloat16(),
        loss=lambda output, target: nn.functional.cross_entropy(output.float(), target),
        train=(make_task().train[0].bfloat16(), make_task().train[1]),  # type: ignore[index,union-attr]
        optimizer=partial(torch.optim.SGD, lr=0.5),
        ema=0.999,
    )
    run, half = quick_fit(task), quick_fit(task, epochs=1)
    assert run.ema_weights is not None
    assert run.ema_weights["weight"].dtype == torch.bfloat16
    assert apart(run.ema_weights, half.ema_weights) > 0


def test_the_record_and_its_folder(tmp_path: Path) -> None:
    task = task_with(test=make_task().test, epochs=2)
    run = quick_fit(task, run_dir=tmp_path)
    stored = mh.Run.load(tmp_path)
    assert stored.ema == run.ema
    assert stored.ema is not None
    assert stored.ema["decay"] == DECAY
    assert stored.ema["weights_sha256"] == weights_digest(stored.ema_weights)  # type: ignore[arg-type]
    assert stored.ema["test"] == mh.evaluate(task, stored.ema_weights)  # type: ignore[arg-type]
    assert [entry["ema_test_loss"] for entry in stored.epochs][1] == stored.ema["test"]["loss"]
    quick_fit(task.replace(ema=None), run_dir=tmp_path)
    assert not (tmp_path / "weights_ema.safetensors").exists()
    assert mh.Run.load(tmp_path).ema_weights is None
