"""Drive workers by hand: a stretch of steps under a strategy, from given weights and state to new ones."""

from __future__ import annotations

import functools
from itertools import repeat
from typing import Any

import pytest
import torch

import manyhands as mh
from manyhands.data.batches import Batches
from manyhands.strategies import make_strategy
from manyhands.strategies.contract import processes
from manyhands.strategies.job import StepSettings
from manyhands.training.build import build
from manyhands.world.launch.processes import LaunchedProcess, launch
from manyhands.world.rank import connect, rank_of
from tests.conftest import make_task, quick_fit

Point = tuple[dict[str, Any], dict[str, Any]]  # weights and state


def drive(task: mh.Task, strategy: str, ranks: int, first: int, last: int, start: Point | None = None) -> Point:
    """Steps `first` to `last` of the first epoch; returns weights and state as rank 0 gives them."""
    chosen = make_strategy(strategy, ranks)
    job = build(task, StepSettings())
    job.prepared = chosen.prepare(job)
    body = functools.partial(_body, job=job, strategy=chosen, first=first, last=last, start=start)
    count, shared = processes(chosen), chosen.share(job)
    return launch(body, count, ranks=ranks, shared=shared, time_limit=60, preload=chosen.traits.preload)[0]  # type: ignore[no-any-return]


def _body(process: LaunchedProcess, job: Any, strategy: Any, first: int, last: int, start: Point | None) -> Point:
    rank, store = rank_of(process, torch.device("cpu"))
    connect(rank, "gloo", store, 60)
    worker = strategy.setup(job, rank)
    if start is not None:
        worker.load(*start)
    shard = strategy.feed(rank)
    batches = Batches(job.train, job.order, shard, False).epoch(0, first) if shard is not None else repeat(None)
    for _ in range(last - first):
        worker.step(next(batches))
    rank.barrier()  # a server's weights are whole when every rank has written
    result = worker.weights(), worker.state()
    rank.barrier()
    return result


def furthest(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def with_memory(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def halving(optimizer: torch.optim.Optimizer, updates: int) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.StepLR(optimizer, 6, 0.5)


@functools.cache
def _alone() -> tuple[Point, Point]:
    """Ten and twenty steps of `single`, once for all strategies."""
    task = make_task(optimizer=with_memory, schedule=halving)
    return drive(task, "single", 1, 0, 10), drive(task, "single", 1, 0, 20)


def check_state_travels(strategy: str, ranks: int) -> None:
    """Ten steps here and ten under `single`, or the other way round, are twenty steps of `single`."""
    task = make_task(optimizer=with_memory, schedule=halving)
    half, (whole, state) = _alone()
    mine = drive(task, strategy, ranks, 0, 10)
    assert mine[1]["updates"] == 10
    assert mine[1]["optimizer"]["state"].keys() == half[1]["optimizer"]["state"].keys()
    assert {name: value["momentum_buffer"].shape for name, value in mine[1]["optimizer"]["state"].items()} == {
        name: value["momentum_buffer"].shape for name, value in half[1]["optimizer"]["state"].items()
    }
    onward, after = drive(task, "single", 1, 10, 20, mine)
    assert furthest(onward, whole) <= 1e-6
    assert _options(after) == _options(state)
    assert furthest(drive(task, strategy, ranks, 10, 20, half)[0], whole) <= 1e-6


def _options(state: dict[str, Any]) -> list[dict[str, Any]]:
    """The optimizer's groups, whichever kernels they run on."""
    return [{key: value for key, value in group.items() if key != "fused"} for group in state["optimizer"]["groups"]]


@functools.cache
def reference(kind: str = "mlp", **keywords: Any) -> mh.Run:
    """What `single` gives, once for all tests that ask."""
    return quick_fit(make_task(kind), **{"max_steps": 30, **keywords})


def check_phases(run: mh.Run) -> None:
    """Phases sum to the step, and the steps to the run."""
    assert run.phases_ms is not None
    assert run.seconds == pytest.approx(run.steps * sum(run.phases_ms.values()) / 1000, rel=0.02)
    for row in run.per_rank:
        assert all(value >= 0 for value in row["phases_ms"].values())


def bytes_of(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
