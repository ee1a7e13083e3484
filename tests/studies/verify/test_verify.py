"""verify(): equal or not, where, and why: whole verifications of small tasks."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import manyhands as mh

INPUTS = torch.randn(64, 6, generator=torch.Generator().manual_seed(1))
LABELS = torch.randint(0, 3, (64,), generator=torch.Generator().manual_seed(2))
FIELDS = {
    "strategy", "exact", "equal", "gradient_difference", "weight_difference", "tolerance", "first_step", "first_layer",
    "reason", "cause", "cure",
}  # fmt: skip


def task(**changes: Any) -> mh.Task:
    plain = mh.Task(
        model=lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)),
        train=(INPUTS, LABELS),
        loss=F.cross_entropy,
        optimizer=partial(torch.optim.SGD, lr=0.1),
        batch_size=8,
        epochs=2,
    )
    return plain.replace(**changes)


def only(found: dict[str, Any]) -> dict[str, Any]:
    [result] = found["results"]
    return result  # type: ignore[no-any-return]


def test_a_plain_task_is_equal_and_a_strategy_that_cannot_take_it_says_so() -> None:
    found = mh.verify(task(), ["ddp", "pipeline:ranks=9"], steps=3)
    equal, refused = found["results"]
    assert found["findings"] == []
    assert set(equal) >= FIELDS
    assert equal["equal"] is True
    assert equal["exact"] is True
    assert equal["cause"] is None
    assert equal["reason"] is None
    assert 0 < equal["gradient_difference"] <= equal["gradient_tolerance"] < 1e-4
    assert equal["weight_difference"] <= equal["tolerance"] < 1e-4
    assert refused["equal"] is None
    assert "refused: pipeline" in refused["reason"]
    json.dumps(found, allow_nan=False)


class Doubles(nn.Module):
    """Wrong from the third batch on, in a way that no look before the start can see."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)
        self.batches: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.batches.append(len(x))
        scale = sum(self.batches[-1:]) if len(self.batches) > 9 and self.training else 8
        return self.second(torch.relu(self.first(x)) * scale / 8)


def test_the_first_step_that_differs_is_found_and_named() -> None:
    result = only(mh.verify(task(model=Doubles), "ddp", steps=12))
    assert (result["equal"], result["cause"], result["first_step"]) == (False, "state", 10)
    assert result["first_layer"] == "first.weight"
    assert result["weight_difference"] > result["tolerance"] >= 0
    assert "with nothing kept between batches it is equal" in result["reason"]


def test_a_strategy_that_promises_nothing_is_reported_with_how_far_it_strays() -> None:
    result = only(mh.verify(task(), "local_sgd", ranks=2, steps=3))
    assert (result["exact"], result["equal"], result["cause"]) == (False, False, "asynchronous")
    assert result["weight_difference"] > 0
    assert "go their own ways" in result["reason"]


def test_what_cannot_be_asked_is_bad_input() -> None:
    with pytest.raises(mh.BadInput, match="steps must be a whole number of at least 1"):
        mh.verify(task(), "ddp", steps=0)
    with pytest.raises(mh.BadInput, match="verify keeps no runs; leave out run_dir"):
        mh.verify(task(), "ddp", run_dir="runs")
    with pytest.raises(mh.BadInput, match='no strategy named "dpp"; did you mean "ddp"'):
        mh.verify(task(), "dpp")
