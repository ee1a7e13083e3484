"""local_sgd: copies that meet every few updates, the bytes of its formula, and what its average means."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import manyhands as mh
from tests.conftest import distance, make_task, mlp, quick_fit
from tests.strategies.driving import bytes_of, check_phases, drive, furthest, halving, reference, with_memory


@pytest.mark.parametrize(
    ("kind", "ranks"),
    [("skips", 3), ("tied", 2), *(pytest.param(*row, marks=pytest.mark.soak) for row in [("mlp", 2), ("dict", 3)])],
)
def test_meeting_after_every_step_is_single(kind: str, ranks: int) -> None:
    run = quick_fit(make_task(kind), "local_sgd:period=1", ranks=ranks, max_steps=30)
    assert distance(reference(kind), run) <= 1e-5  # an average rounds more than a sum of gradients does
    assert run.exact is False  # it holds for plain SGD alone, so it is not promised


def test_accumulation_is_weighted_by_samples() -> None:
    keywords: dict[str, Any] = {"accumulate": 3, "epochs": 1, "max_steps": None}
    run = quick_fit(make_task(), "local_sgd:period=1", ranks=3, **keywords)
    assert distance(reference("mlp", **keywords), run) <= 1e-6
    assert run.updates == 12


@pytest.mark.soak
def test_apart_for_longer_the_loss_still_falls_and_less_travels() -> None:
    task = make_task(epochs=4)
    run = quick_fit(task, "local_sgd:period=8", ranks=3)
    meetings = run.updates // 8
    assert run.communication_bytes == pytest.approx(3 * bytes_of(mlp().parameters()) * meetings / run.steps)
    assert run.epochs[-1]["loss"] < 0.75 * run.epochs[0]["loss"]
    assert run.test is not None
    assert run.test["accuracy"] > 0.7
    assert 0 < distance(quick_fit(task), run) < 0.2
    check_phases(run)


def test_ranks_without_samples_do_not_count() -> None:
    task = make_task(batch_size=2)
    one, many = quick_fit(task, max_steps=10), quick_fit(task, "local_sgd:period=1", ranks=3, max_steps=10)
    assert distance(one, many) <= 1e-6


def test_the_outer_momentum_is_the_formula() -> None:
    """One meeting after two steps: anchor + rate * (average - anchor), then the velocity carries on."""
    task = make_task()
    start = mlp_weights(task)
    plain = drive(task, "local_sgd:period=2", 2, 0, 2)[0]
    scaled = drive(task, "local_sgd:period=2,outer_rate=0.5", 2, 0, 2)[0]
    assert furthest(scaled, {name: start[name] + 0.5 * (plain[name] - start[name]) for name in start}) <= 1e-6
    first, state = drive(task, "local_sgd:period=2,outer_momentum=0.5", 2, 0, 2)
    assert furthest(first, plain) <= 1e-6
    moved = {name: first[name] - start[name] for name in start}
    assert furthest(state["outer"], moved) <= 1e-6
    onward = drive(task, "local_sgd:period=2,outer_momentum=0.5", 2, 0, 4)[0]
    fresh = drive(task, "local_sgd:period=2", 2, 2, 4, (first, {**state, "outer": {}}))[0]
    assert furthest(onward, {name: fresh[name] + 0.5 * moved[name] for name in start}) <= 1e-6
    resumed = drive(task, "local_sgd:period=2,outer_momentum=0.5", 2, 2, 4, (first, state))[0]
    assert furthest(onward, resumed) <= 1e-6


def mlp_weights(task: mh.Task) -> dict[str, torch.Tensor]:
    return drive(task, "single", 1, 0, 0)[0]


def test_state_is_averaged_by_name_and_goes_on_anywhere() -> None:
    task = make_task(optimizer=with_memory, schedule=halving)
    weights, state = drive(task, "local_sgd:period=2", 3, 0, 10)
    assert state["updates"] == 10
    assert state["optimizer"]["groups"][0]["lr"] == 0.025
    whole = drive(task, "single", 1, 0, 10)
    assert {name: value["momentum_buffer"].shape for name, value in state["optimizer"]["state"].items()} == {
        name: value["momentum_buffer"].shape for name, value in whole[1]["optimizer"]["state"].items()
    }
    onward = drive(task, "single", 1, 10, 20, (weights, state))[0]
    assert 0 < furthest(onward, drive(task, "single", 1, 0, 20)[0]) < 0.05
    kept, same = drive(task, "local_sgd:period=2", 2, 10, 10, (weights, state))
    assert furthest(kept, weights) == 0
    for name, values in state["optimizer"]["state"].items():
        assert torch.allclose(values["momentum_buffer"], same["optimizer"]["state"][name]["momentum_buffer"])


@pytest.mark.soak
@pytest.mark.parametrize(
    ("optimizer", "options", "stop"),
    [
        pytest.param(partial(torch.optim.SGD, lr=0.05), "period=8", 16, marks=pytest.mark.soak),  # on an average
        (with_memory, "period=8", 16),  # on an average, where the momenta of the ranks still differ
        pytest.param(with_memory, "period=4", 7, marks=pytest.mark.soak),
        (partial(torch.optim.AdamW, lr=0.01), "period=3,outer_momentum=0.5,outer_rate=0.7", 11),
    ],
)
def test_resumed_it_ends_with_the_weights_of_the_unbroken_run(
    optimizer: Any, options: str, stop: int, tmp_path: Path
) -> None:
    """It went on from the averages of weights and momenta, so it ended with other weights than the unbroken run."""
    task = make_task(optimizer=optimizer, schedule=halving, model=with_statistics)
    strategy = f"local_sgd:{options}"
    whole = quick_fit(task, strategy, ranks=3, max_steps=20, clip=1.0)
    quick_fit(task, strategy, ranks=3, max_steps=stop, clip=1.0, run_dir=tmp_path, checkpoint_every=5)
    resumed = quick_fit(task, strategy, ranks=3, max_steps=20, clip=1.0, run_dir=tmp_path, resume=True)
    assert resumed.resumed_from is not None
    assert resumed.resumed_from["step"] == stop
    assert resumed.weights_sha256 == whole.weights_sha256
    assert resumed.losses == whole.losses


def with_statistics() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 8), nn.BatchNorm1d(8, momentum=None), nn.ReLU(), nn.Linear(8, 3))


def test_resumed_with_other_ranks_it_goes_on_from_the_average_and_says_so(tmp_path: Path) -> None:
    task = make_task(optimizer=with_memory)
    quick_fit(task, "local_sgd", ranks=3, max_steps=5, run_dir=tmp_path, checkpoint_every=5)
    for strategy, ranks in (("local_sgd", 2), ("single", 1)):
        resumed = quick_fit(task, strategy, ranks=ranks, max_steps=10, run_dir=tmp_path, resume=True)
        assert resumed.resumed_from == {"step": 5, "epoch": 1, "strategy": "local_sgd", "ranks": 3}
        assert len(resumed.losses) == 10
        said = "the checkpoint has the copies of 3 ranks, so all 2 went on from their average"
        assert (said in resumed.notes) == (ranks == 2)


def test_state_of_ranks_that_never_had_a_sample() -> None:
    task = make_task(optimizer=with_memory, batch_size=2)
    _, state = drive(task, "local_sgd:period=3", 3, 0, 4)
    assert state["optimizer"]["state"].keys() == dict(mlp().named_parameters()).keys()


def test_clipping_bounds_each_ranks_own_step() -> None:
    task = make_task()
    start = mlp_weights(task)
    run = quick_fit(task, "local_sgd:period=4", ranks=2, max_steps=4, clip=0.01)
    assert run.weights is not None
    moved = torch.sqrt(sum(((run.weights[name] - start[name]) ** 2).sum() for name in start))  # type: ignore[call-overload]
    assert 0 < float(moved) <= 4 * 0.1 * 0.01 * 1.001  # four steps of rate 0.1 along gradients of norm 0.01


def test_batchnorm_statistics_are_averaged() -> None:
    task = make_task(model=lambda: nn.Sequential(nn.BatchNorm1d(20), nn.Linear(20, 3)))
    one, many = quick_fit(task, max_steps=8), quick_fit(task, "local_sgd:period=4", ranks=2, max_steps=8)
    assert one.weights is not None
    assert many.weights is not None
    assert torch.allclose(one.weights["0.running_mean"], many.weights["0.running_mean"], atol=1e-5)
    with pytest.raises(
        mh.Refused, match=r"local_sgd lets ranks train apart, so BatchNorm .* use ddp with sync_batchnorm"
    ):
        quick_fit(task, "local_sgd", ranks=2, sync_batchnorm=True)


def test_bf16_trains() -> None:
    run = quick_fit(make_task(), "local_sgd", ranks=2, precision="bf16", max_steps=60)
    assert run.losses[-1] < run.losses[0]  # type: ignore[operator]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"period": 0}, r"period must be at least 1 \(found 0\)"),
        ({"outer_momentum": 1.0}, r"outer_momentum must be at least 0 and below 1 \(found 1\)"),
        ({"outer_rate": 0.0}, r"outer_rate must be above 0 \(found 0\)"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(mh.BadInput, match=message):
        mh.LocalSGD(ranks=2, **options)  # type: ignore[attr-defined]
