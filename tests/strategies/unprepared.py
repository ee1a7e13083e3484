"""Tasks around models that nobody here prepared, and the check that they train as under `single`."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import manyhands as mh
from tests.conftest import distance, quick_fit

SAMPLES, FEATURES, CLASSES, BATCH = 46, 16, 5, 8  # the last batch is short
CUT = ("model_parallel", "pipeline", "hybrid:replicas=2,stages=2,chunks=2")
THREADS = ("data_parallel", "balanced_data_parallel")
# One of either kind is enough to tell; test_zoo.py has every strategy.
both_kinds = pytest.mark.parametrize(
    "strategies",
    [("pipeline", "data_parallel"), pytest.param((CUT[0], CUT[2], THREADS[1]), marks=pytest.mark.soak)],
    ids=["quick", "others"],
)


def numbers() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return (
        torch.randn(SAMPLES, FEATURES, generator=generator),
        torch.randint(0, CLASSES, (SAMPLES,), generator=generator),
    )


def tokens() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return (
        torch.randint(0, 11, (SAMPLES, 6), generator=generator),
        torch.randint(0, CLASSES, (SAMPLES,), generator=generator),
    )


def images() -> tuple[Tensor, Tensor]:
    return torch.randn(SAMPLES, 2, 8, 8, generator=torch.Generator().manual_seed(3)), numbers()[1]


def task_of(model: Any, train: Any = None, **changes: Any) -> mh.Task:
    recipe: dict[str, Any] = {
        "loss": F.cross_entropy,
        "optimizer": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
        "batch_size": BATCH,
    }
    return mh.Task(model=model, train=train or numbers(), **{**recipe, **changes})


def check(task: mh.Task, *strategies: str) -> None:
    one = quick_fit(task)
    for strategy in strategies:
        many = quick_fit(task, strategy, **({} if "hybrid" in strategy else {"ranks": 2}))
        assert distance(one, many) <= 2e-6, strategy


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(FEATURES, 32), nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Any:
        return self.b(torch.tanh(self.a(x)))
