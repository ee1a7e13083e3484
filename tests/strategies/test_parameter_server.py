"""parameter_server: sync is exact over memory and network, slices are balanced, bounds hold, nothing hangs."""

from __future__ import annotations

import functools
import os
import time
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import manyhands as mh
from manyhands.strategies.pieces.parameter_slices import assign_slices
from tests.conftest import distance, make_task, mlp, quick_fit
from tests.strategies.driving import bytes_of, check_phases, drive, furthest, halving, reference
from tests.strategies.sharing import (
    Normed,
    check_every_sample_is_read_once,
    check_failures_end_the_run,
    momentum,
    sparse_task,
)


@pytest.mark.parametrize(
    ("kind", "ranks", "options"),
    [
        pytest.param("mlp", 2, "", marks=pytest.mark.soak),
        ("skips", 3, ":servers=2"),
        ("tied", 2, ":servers=2,over=network"),
        ("dict", 3, ":over=network"),
    ],
)
def test_sync_is_exact(kind: str, ranks: int, options: str, nothing_left: None) -> None:
    run = quick_fit(make_task(kind), "parameter_server" + options, ranks=ranks, max_steps=30)
    assert distance(reference(kind), run) <= 1e-6
    assert run.exact is True
    assert run.ranks == ranks == len(run.per_rank)
    assert run.updates == run.steps == 30
    assert run.staleness is None
    check_phases(run)


class Resting(nn.Module):
    """Its second layer takes part in every other step only."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.calls = mlp(), mlp(), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.first(x) + self.second(x) if self.calls % 2 else self.first(x)


@pytest.mark.parametrize("servers", [1, 2])
def test_a_parameter_without_a_gradient_rests(servers: int) -> None:
    """Its place in shared memory holds zeros then, which momentum would not take for nothing."""
    task = make_task(model=Resting, optimizer=momentum, test=None)
    one, many = quick_fit(task, max_steps=9), quick_fit(task, f"ps:servers={servers}", ranks=2, max_steps=9)
    assert distance(one, many) <= 1e-6


def by_name(named: Any) -> torch.optim.Optimizer:
    """Weights and biases in groups of their own, told apart by name."""
    named = list(named)
    groups = [
        {"params": [(n, p) for n, p in named if n.endswith(kind)], "lr": lr}
        for kind, lr in (("weight", 0.05), ("bias", 0.1))
    ]
    return torch.optim.SGD(groups, lr=0.05, momentum=0.9, weight_decay=1e-3)


@pytest.mark.parametrize("over", ["memory", "network"])
def test_groups_schedule_clipping_and_accumulation_over_two_servers(over: str) -> None:
    task = make_task(optimizer=by_name, schedule=halving)
    options = {"accumulate": 3, "clip": 0.5, "epochs": 1}
    one, many = quick_fit(task, **options), quick_fit(task, f"ps:servers=2,over={over}", ranks=3, **options)
    assert distance(one, many) <= 1e-6
    assert many.updates == 12
    assert many.epochs[0]["learning_rate"] == one.epochs[0]["learning_rate"]


@pytest.mark.parametrize("options", [":servers=2", ":over=network", ":mode=async"])
def test_bytes_are_the_formula(options: str) -> None:
    run = quick_fit(make_task(), "parameter_server" + options, ranks=3, max_steps=10)
    assert run.communication_bytes == 2 * 3 * bytes_of(mlp().parameters())


@pytest.mark.parametrize("options", [":servers=2", ":servers=2,over=network"])
def test_sparse_gradients_travel_as_rows(options: str) -> None:
    """One sample of four equal words a rank: one row of 6 numbers and its number, besides the dense head."""
    words = torch.arange(40)[:, None].repeat(1, 4)
    task = sparse_task(train=(words, words[:, 0] % 3), batch_size=2)
    one, many = quick_fit(task, max_steps=10), quick_fit(task, "ps" + options, ranks=2, max_steps=10)
    assert distance(one, many) <= 5e-6
    pushed, pulled = 2 * (6 * 4 + 8 + 21 * 4), 2 * (40 * 6 + 21) * 4
    assert many.communication_bytes == pushed + pulled


@pytest.mark.parametrize("options", ["", pytest.param(":servers=2", marks=pytest.mark.soak), ":servers=2,over=network"])
def test_state_travels_between_strategies(options: str) -> None:
    task = make_task(optimizer=momentum, schedule=halving)
    whole, _ = drive(task, "single", 1, 0, 20)
    half = drive(task, "single", 1, 0, 10)
    mine = drive(task, "ps" + options, 2, 0, 10)
    assert mine[1]["updates"] == 10
    assert furthest(_buffers(mine[1]), _buffers(half[1])) <= 1e-6
    assert mine[1]["optimizer"]["groups"] == half[1]["optimizer"]["groups"]
    assert furthest(drive(task, "single", 1, 10, 20, mine)[0], whole) <= 1e-6
    assert furthest(drive(task, "ps" + options, 2, 10, 20, half)[0], whole) <= 1e-6


def _buffers(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {name: value["momentum_buffer"] for name, value in state["optimizer"]["state"].items()}


@pytest.mark.parametrize("options", [":mode=async", ":mode=async,servers=2,over=network,scale=shard,partition=fixed"])
def test_async_learns_and_counts_staleness(options: str, nothing_left: None) -> None:
    run = quick_fit(make_task(optimizer=momentum, schedule=halving), "ps" + options, ranks=2, epochs=2, clip=1.0)
    assert run.exact is False
    assert run.samples == 2 * 1003
    assert run.updates == 2 * run.steps
    assert run.staleness is not None
    assert sum(run.staleness["histogram"]) == run.updates
    assert run.epochs[-1]["loss"] < run.epochs[0]["loss"]
    assert run.epochs[-1]["learning_rate"] == pytest.approx(0.05 * 0.5 ** (run.steps // 6))
    check_phases(run)


@pytest.mark.parametrize("over", ["memory", pytest.param("network", marks=pytest.mark.soak)])
def test_bounded_holds_its_bound(over: str) -> None:
    """With bound s, others make at most 2 s + 1 updates each between a rank's pull and its push."""
    for bound in (0, 2):
        task = make_task(epochs=1)
        run = quick_fit(task, f"ps:mode=bounded,staleness={bound},over={over}", ranks=3, accumulate=2)
        assert run.staleness is not None
        assert run.staleness["max"] <= 2 * (2 * bound + 1)
        assert run.updates == 3 * 17


def test_one_rank_async_is_single() -> None:
    run = quick_fit(make_task(optimizer=momentum), "ps:mode=async", ranks=1, max_steps=30, precision="bf16")
    assert distance(quick_fit(make_task(optimizer=momentum), max_steps=30, precision="bf16"), run) <= 1e-6


def test_on_step_can_end_an_asynchronous_run(nothing_left: None) -> None:
    for over in ("memory", "network"):
        run = quick_fit(make_task(), f"ps:mode=async,over={over}", ranks=2, on_step=lambda figures: figures.step >= 7)
        assert run.status == "stopped"
        assert 7 <= run.steps < 102


@pytest.mark.soak
def test_small_batches_leave_ranks_without_samples() -> None:
    task = make_task(batch_size=2)
    assert distance(quick_fit(task, max_steps=10), quick_fit(task, "ps", ranks=3, max_steps=10)) <= 1e-6
    assert quick_fit(task, "ps:mode=async", ranks=3, max_steps=10).updates == 20


def test_batchnorm_statistics_are_averaged() -> None:
    run = quick_fit(make_task(model=Normed), "ps", ranks=2, max_steps=10)
    assert run.exact is False
    assert any("BatchNorm" in note for note in run.notes)


def test_every_sample_is_read_once() -> None:
    check_every_sample_is_read_once("ps", 3)
    check_every_sample_is_read_once("ps:mode=async,partition=fixed", 3)


@pytest.mark.parametrize("strategy", ["ps", "ps:mode=async,over=network"])
def test_a_failing_or_killed_rank_ends_the_run(strategy: str, nothing_left: None) -> None:
    check_failures_end_the_run(strategy)


def test_slices_are_balanced_by_bytes_and_cover_everything() -> None:
    named = [
        ("big", torch.empty(1000, 30)),
        ("small", torch.empty(7)),
        ("scalar", torch.empty(())),
        ("mid", torch.empty(50, 30)),
    ]
    for servers in (1, 2, 3, 5):
        for split in (True, False):
            slices = assign_slices(named, servers, split)
            rows = {name: 0 for name, _ in named}
            for own in slices:
                for item in own:
                    rows[item.name] += item.stop - item.start
            assert rows == {"big": 1000, "small": 7, "scalar": 1, "mid": 50}
            if split:
                held = [sum(item.of(dict(named)[item.name]).numel() for item in own) for own in slices]
                assert max(held) - min(held) <= 2 * 30


def test_refusals() -> None:
    with pytest.raises(
        mh.Refused, match="splits the parameters over servers, but this optimizer updates them together"
    ):
        quick_fit(make_task(optimizer=functools.partial(torch.optim.Adafactor, lr=0.01)), "ps:servers=2", ranks=2)
    small = make_task(model=lambda: nn.Linear(20, 3))
    with pytest.raises(mh.Refused, match=r"more servers than pieces to hold \(servers: 8\); use servers=2"):
        quick_fit(small, "ps:servers=8,split=false", ranks=2)
    with pytest.raises(
        mh.Refused, match="parameter_server has no step in which all ranks meet, which sync_batchnorm needs"
    ):
        quick_fit(make_task(), "ps", ranks=2, sync_batchnorm=True)


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        ("ps:mode=fast", 'parameter_server:mode must be one of sync, async, bounded .found "fast"'),
        ("ps:servers=0", "needs at least 1 server .found servers=0"),
        ("ps:mode=bounded,staleness=-1", "staleness must be 0 or more .found -1"),
        ("ps:staleness=2", "staleness needs mode=bounded; write mode=bounded,staleness=2"),
        ("ps:partition=fixed", "mode=sync makes the updates of single; scale and partition need mode=async or"),
    ],
)
def test_bad_options(strategy: str, message: str) -> None:
    with pytest.raises(mh.BadInput, match=message):
        quick_fit(make_task(), strategy, ranks=2)


class SlowOn(torch.optim.SGD):
    """Plain SGD that takes its time on one process."""

    def step(self, closure: Any = None) -> Any:
        if os.environ.get("RANK") == "3":
            time.sleep(0.1)
        return super().step(closure)


@pytest.mark.parametrize(
    "options",
    [
        "servers=2",
        *(pytest.param(f"servers=2,{more}", marks=pytest.mark.soak) for more in ("over=network", "mode=async")),
    ],
)
def test_a_slow_server_is_named_and_its_update_is_no_wait(options: str) -> None:
    """The time of an update was booked as the ranks' wait, and a slow server was never named."""
    task = make_task(optimizer=partial(SlowOn, lr=0.1))
    run = quick_fit(task, f"parameter_server:{options}", ranks=2, max_steps=10)
    assert run.phases_ms is not None
    assert [row["server"] for row in run.servers] == [0, 1]
    quick, slow = (row["phases_ms"]["update"] for row in run.servers)
    assert slow >= 100.0
    assert quick < slow / 2
    assert 100.0 <= run.phases_ms["update"] < 1.5 * slow  # twice that: booked twice
    assert run.slow_rank is not None
    assert (run.slow_rank["rank"], run.slow_rank["server"], run.slow_rank["phase"]) == (None, 1, "update")
    check_phases(run)
