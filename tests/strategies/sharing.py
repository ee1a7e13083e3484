"""What the tests of locked, hogwild and parameter_server have in common."""

from __future__ import annotations

import functools
import os
import signal
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import manyhands as mh
from manyhands.data.order import Order
from manyhands.strategies import make_strategy
from tests.conftest import SAMPLES, ends_soon, make_task, quick_fit

momentum = functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=1e-3)


class SparseRows(nn.Module):
    """An embedding with sparse gradients under a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 6, sparse=True)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embed(x).mean(1))


def sparse_task(**changes: Any) -> mh.Task:
    generator = torch.Generator().manual_seed(3)
    words = torch.randint(40, (SAMPLES, 4), generator=generator)
    return make_task(**{"model": SparseRows, "train": (words, words[:, 0] % 3), "test": None, **changes})


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(20, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.norm(self.first(x))))


def check_every_sample_is_read_once(strategy: str, ranks: int) -> None:
    chosen = make_strategy(strategy, ranks)
    order = Order(SAMPLES, 30, 0)
    read: list[int] = []
    for index in range(ranks):
        shard = chosen.feed(SimpleNamespace(index=index, serves=False))  # type: ignore[arg-type]
        assert shard is not None
        read += [int(sample) for step in order.steps(0) for sample in order.indices(step, shard)]
    assert sorted(read) == list(range(SAMPLES))


def raising(output: Tensor, target: Tensor) -> Tensor:
    if os.environ.get("RANK") == "1":
        raise ValueError("a bad day")
    return nn.functional.cross_entropy(output, target)


_calls = 0


def dying(output: Tensor, target: Tensor) -> Tensor:
    """Rank 1 is killed in the middle of its fifth step; the other, which does not wait for it, is not done before that."""
    global _calls
    _calls += os.environ.get("RANK") == "1"
    if os.environ.get("RANK") == "0":
        time.sleep(0.01)
    if _calls == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return nn.functional.cross_entropy(output, target)


def check_failures_end_the_run(strategy: str) -> None:
    with (
        ends_soon(),
        pytest.raises(mh.RankFailed, match="rank 1 of 2 failed in step 1, forward: ValueError: a bad day"),
    ):
        quick_fit(make_task(loss=raising), strategy, ranks=2, max_steps=30)
    with ends_soon(), pytest.raises(mh.RankFailed, match="rank 1 of 2 died in step 5, forward: killed by signal 9"):
        quick_fit(make_task(loss=dying), strategy, ranks=2, max_steps=30)
