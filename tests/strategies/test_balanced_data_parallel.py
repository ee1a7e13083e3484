"""balanced_data_parallel: the weights of single with equal and unequal shares, the bytes of its formula."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor, nn

import manyhands as mh
from manyhands.strategies import make_strategy
from tests.conftest import BATCH, MODELS, distance, make_task, mlp, quick_fit
from tests.strategies.driving import bytes_of, check_phases, check_state_travels, reference


@pytest.mark.soak  # test_contract.py holds every strategy to this; here with all its options
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("kind", MODELS)
def test_it_trains_the_model_of_single(kind: str, ranks: int) -> None:
    run = quick_fit(make_task(kind), "balanced_data_parallel", ranks=ranks, max_steps=30)
    assert distance(reference(kind), run) <= 1e-6
    assert run.exact is True
    assert run.losses == pytest.approx(reference(kind).losses, abs=1e-6)


def test_unequal_shares_train_the_same_model() -> None:
    run = quick_fit(make_task(), "bdp:shares=1+3.5", max_steps=30)
    assert distance(reference(), run) <= 1e-6
    assert [row["samples"] for row in run.per_rank] == [30 * 7, 30 * 23]
    assert run.ranks == 2
    assert run.label == "balanced_data_parallel:shares=1+3.5"
    assert make_strategy(run.label) == make_strategy("bdp:shares=1+3.5", 2)


@pytest.mark.soak
def test_accumulation_and_clipping_are_those_of_single() -> None:
    keywords: dict[str, Any] = {"accumulate": 3, "clip": 0.05, "epochs": 1, "max_steps": None}
    one, many = reference("skips", **keywords), quick_fit(make_task("skips"), "bdp", ranks=3, **keywords)
    assert distance(one, many) <= 1e-6
    assert many.updates == one.updates == 12


def test_bytes_are_those_of_the_formula() -> None:
    run = quick_fit(make_task(), "balanced_data_parallel", ranks=3, max_steps=5)
    weights = bytes_of(mlp().parameters())
    assert run.communication_bytes == 2 * (weights + weights + 8) + BATCH * (20 * 4 + 8) * 2 / 3


def test_phases_close_and_nothing_is_gathered() -> None:
    run = quick_fit(make_task(), "balanced_data_parallel", ranks=2, max_steps=20)
    check_phases(run)
    assert [row["held_bytes"]["gathered"] for row in run.per_rank] == [0, 0]
    assert run.phases_ms is not None
    for row in run.per_rank:
        assert sum(row["phases_ms"].values()) == pytest.approx(sum(run.phases_ms.values()), rel=0.02)


def test_outputs_of_any_shape_are_left_where_they_are() -> None:
    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(20, 1)

        def forward(self, x: Tensor) -> dict[str, Any]:
            return {"mean": self.layer(x).mean(), "name": "scalar"}

    task = make_task(model=Mean, loss=lambda output, target: (output["mean"] - 1) ** 2, test=None)
    run = quick_fit(task, "balanced_data_parallel", ranks=2, max_steps=20)
    assert run.losses[-1] < run.losses[0]  # type: ignore[operator]


def test_its_state_is_that_of_single() -> None:
    check_state_travels("balanced_data_parallel", 3)


def test_bf16_trains_and_is_not_called_exact() -> None:
    run = quick_fit(make_task(), "balanced_data_parallel", ranks=2, precision="bf16", max_steps=60)
    assert run.exact is False
    assert run.losses[-1] < run.losses[0]  # type: ignore[operator]


def test_bad_shares_are_refused() -> None:
    with pytest.raises(mh.BadInput, match=r"shares=1\+3 has 2 numbers but there are 3 replicas"):
        make_strategy("balanced_data_parallel:shares=1+3", 3)
    with pytest.raises(mh.BadInput, match=r"shares must be above 0 \(found 1\+0\)"):
        make_strategy("balanced_data_parallel:shares=1+0")
    with pytest.raises(mh.BadInput, match="ranks must be a whole number of at least 1"):
        mh.BalancedDataParallel(ranks=-1)  # type: ignore[attr-defined]


def test_batchnorm_over_replicas_is_refused() -> None:
    with_norm = make_task(model=lambda: nn.Sequential(nn.BatchNorm1d(20), nn.Linear(20, 3)))
    with pytest.raises(mh.Refused, match=r"balanced_data_parallel runs BatchNorm .* use ddp with sync_batchnorm"):
        quick_fit(with_norm, "balanced_data_parallel", ranks=2, sync_batchnorm=True)
