"""data_parallel: the weights of single, the bytes of its formula, the load of the first replica."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import manyhands as mh
from manyhands.data.order import permutation
from tests.conftest import BATCH, MODELS, distance, make_task, mlp, quick_fit
from tests.strategies.driving import bytes_of, check_phases, check_state_travels, reference


@pytest.mark.soak  # test_contract.py holds every strategy to this; here with all its options
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("kind", MODELS)
def test_it_trains_the_model_of_single(kind: str, ranks: int) -> None:
    run = quick_fit(make_task(kind), "data_parallel", ranks=ranks, max_steps=30)
    assert distance(reference(kind), run) <= 1e-6
    assert run.exact is True
    assert run.losses == pytest.approx(reference(kind).losses, abs=1e-6)


def test_accumulation_and_clipping_are_those_of_single() -> None:
    keywords: dict[str, Any] = {"accumulate": 3, "clip": 0.05, "epochs": 1, "max_steps": None}
    one, many = reference("skips", **keywords), quick_fit(make_task("skips"), "dp", ranks=3, **keywords)
    assert distance(one, many) <= 1e-6
    assert many.updates == one.updates == 12
    assert distance(many, reference("skips", **{**keywords, "clip": None})) > 1e-3  # the clip did something


def test_bytes_are_those_of_the_formula() -> None:
    run = quick_fit(make_task(), "data_parallel", ranks=3, max_steps=5)
    weights = bytes_of(mlp().parameters())
    inputs, outputs = BATCH * 20 * 4, BATCH * 3 * 4
    assert run.communication_bytes == 2 * (weights + weights) + (inputs + 2 * outputs) * 2 / 3


class SlowSGD(torch.optim.SGD):
    """Long enough that nobody waits longer for a busy machine."""

    def step(self, closure: Any = None) -> Any:
        time.sleep(0.05)
        return super().step(closure)


def test_phases_close_and_the_first_replica_carries_more() -> None:
    run = quick_fit(make_task(optimizer=partial(SlowSGD, lr=0.1)), "data_parallel", ranks=2, max_steps=20)
    check_phases(run)
    first, second = run.per_rank
    assert run.phases_ms is not None
    for row in run.per_rank:
        assert sum(row["phases_ms"].values()) == pytest.approx(sum(run.phases_ms.values()), rel=0.02)
    assert (first["samples"], second["samples"]) == (300, 300)
    assert second["phases_ms"]["wait"] > first["phases_ms"]["wait"]
    assert second["phases_ms"]["update"] == 0 < first["phases_ms"]["update"]
    assert first["held_bytes"]["gathered"] == BATCH * 3 * 4
    assert second["held_bytes"]["gathered"] == 0
    assert sum(first["held_bytes"].values()) > sum(second["held_bytes"].values()) > 0
    assert second["held_bytes"]["activations"] > 0
    kept_by_the_loss = first["held_bytes"]["activations"] - second["held_bytes"]["activations"]
    assert kept_by_the_loss >= BATCH * 3 * 4  # taken over the whole batch, on the first: it was not counted
    assert first["peak_memory_bytes"] > 1e7
    assert second["peak_memory_bytes"] is None  # one process, one peak


def test_its_state_is_that_of_single() -> None:
    check_state_travels("data_parallel", 3)


def test_replicas_without_a_sample_do_nothing() -> None:
    task = make_task(batch_size=2)
    one, many = quick_fit(task, max_steps=10), quick_fit(task, "data_parallel", ranks=3, max_steps=10)
    assert distance(one, many) <= 1e-6
    assert [row["samples"] for row in many.per_rank] == [10, 10, 0]


def test_bf16_trains_and_is_not_called_exact() -> None:
    run = quick_fit(make_task(), "data_parallel", ranks=2, precision="bf16", max_steps=60)
    assert run.exact is False
    assert run.losses[-1] < run.losses[0]  # type: ignore[operator]


def test_a_replica_that_fails_is_named(nothing_left: None) -> None:
    class Fragile(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(20, 3)

        def forward(self, x: Tensor) -> Tensor:
            if bool((x[:, 0] > 2.5).any()):
                raise ArithmeticError("too large")
            return self.layer(x)

    x, y = MODELS["mlp"][1]()
    x = x.clamp(-2, 2)
    order = permutation(len(x), 0, 0)
    x[order[2 * BATCH + 20], 0] = 3.0  # step 3, second half
    task = make_task(model=Fragile, train=(x, y), test=None)
    with pytest.raises(
        mh.RankFailed, match="rank 1 of 2 failed in step 3, forward: ArithmeticError: too large"
    ) as raised:
        quick_fit(task, "data_parallel", ranks=2)
    assert (raised.value.rank, raised.value.step) == (1, 3)


def test_refusals_name_the_reason() -> None:
    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(20, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x).mean()

    with pytest.raises(
        mh.Refused,
        match=r"data_parallel gathers outputs along the first .* \(found a tensor of shape \(\) for 3 samples\)",
    ):
        quick_fit(make_task(model=Backwards, loss=lambda output, target: output), "data_parallel", ranks=2)
    with_norm = make_task(model=lambda: nn.Sequential(nn.BatchNorm1d(20), nn.Linear(20, 3)))
    with pytest.raises(mh.Refused, match=r"data_parallel runs BatchNorm .* use ddp with sync_batchnorm"):
        quick_fit(with_norm, "data_parallel", ranks=2, sync_batchnorm=True)
    pairs = [(torch.zeros(20), 0)] * 40
    odd = make_task(
        train=pairs,
        test=None,
        loss=lambda output, target: output.mean(),
        collate=lambda samples: (torch.zeros(7, 20), torch.zeros(len(samples), dtype=torch.int64)),
    )
    with pytest.raises(
        mh.Refused, match=r"splits batches.* \(found in the inputs: a tensor of shape \(7, 20\) for 3 samples\)"
    ):
        quick_fit(odd, "data_parallel", ranks=2)


def test_dropout_is_said_to_differ_between_runs() -> None:
    task = make_task(model=lambda: nn.Sequential(nn.Linear(20, 8), nn.Dropout(0.5), nn.Linear(8, 3)))
    run = quick_fit(task, "data_parallel", ranks=2, max_steps=2)
    assert run.exact is False
    assert any("dropout" in note for note in run.notes)
