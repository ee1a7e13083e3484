"""What a fit notes about its task for nothing: each where it is so, and nowhere else."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau, StepLR

import manyhands as mh
from manyhands.strategies.job import StepSettings, trained_parameters
from manyhands.training.build import build
from manyhands.training.task_notes import constant, notes_before, rate_gone, unchanged

X = torch.randn(320, 6, generator=torch.Generator().manual_seed(0))
Y = (X.sum(1) > 0).long()


class Detached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.norm(self.body(x).detach()))
        return out


def task(**changes: Any) -> mh.Task:
    known: dict[str, Any] = {
        "model": lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)),
        "train": (X, Y),
        "loss": F.cross_entropy,
        "optimizer": functools.partial(torch.optim.SGD, lr=0.1),
        "batch_size": 16,
        "epochs": 30,
    }
    return mh.Task(**{**known, **changes})


def before(**changes: Any) -> list[str]:
    return notes_before(build(task(**changes), StepSettings()))


def test_a_rate_that_is_gone_after_the_first_updates() -> None:
    (note,) = before(schedule=lambda optimizer, updates: StepLR(optimizer, 20))
    assert note == (
        "the learning rate is below a millionth of its start from update 140 of 600 on: a schedule is stepped once per "
        "update, not per epoch"
    )
    assert before(schedule=lambda optimizer, updates: StepLR(optimizer, updates // 3)) == []
    assert before(schedule=lambda optimizer, updates: LambdaLR(optimizer, lambda step: 1 - step / updates)) == []
    assert before(schedule=lambda optimizer, updates: ReduceLROnPlateau(optimizer)) == []
    assert before() == []


def test_a_long_schedule_is_walked_through_only_so_far() -> None:
    job = build(task(schedule=lambda optimizer, updates: StepLR(optimizer, 20)), StepSettings())
    assert rate_gone(job.task, trained_parameters(job.model), 10**9, seconds=0.0) is None


def test_parameters_that_the_optimizer_was_not_given() -> None:
    def head_alone(named: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD([parameter for name, parameter in named if name.startswith("3")], lr=0.1)

    assert before(optimizer=head_alone) == [
        "the optimizer was not given 0.weight, 0.bias, 1.weight and 1 more: training leaves them unchanged"
    ]


def test_a_loss_that_is_the_same_in_every_step() -> None:
    assert constant([0.7] * 20) == 0.7
    assert constant([0.7] * 5) is None
    assert constant([0.7] * 19 + [0.71]) is None
    assert constant([None] * 20) is None


def test_vectors_may_stay_what_they_were() -> None:
    """The gradient of a bias before a BatchNorm is rounding alone, which moves nothing."""
    model = nn.Linear(3, 2)
    assert unchanged(model, {"weight": model.weight.detach() + 1, "bias": model.bias.detach().clone()}) == []
    assert unchanged(model, {"weight": model.weight.detach().clone()}) == ["weight"]
    model.requires_grad_(False)
    assert unchanged(model, {"weight": model.weight.detach().clone()}) == []


@pytest.mark.parametrize("strategy", ["single", "hogwild"])
def test_weights_that_training_left_as_they_were_are_in_the_record(strategy: str) -> None:
    fit = functools.partial(mh.fit, ranks=1 if strategy == "single" else 2, threads=1, epochs=2, progress=False)
    assert "training left body.weight as it was" in fit(task(model=Detached), strategy).notes
    assert not [note for note in fit(task(), strategy).notes if "left" in note or "loss" in note]
