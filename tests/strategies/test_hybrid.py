"""hybrid: replicas of cut models train the model of single; empty shards, tied and unused weights included."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

import manyhands as mh
from manyhands.strategies import make_strategy
from tests.conftest import MODELS, SAMPLES, distance, make_task, mlp, quick_fit
from tests.strategies.cutting import (
    Normed,
    check_a_failing_stage_ends_the_run,
    check_awkward_models,
    check_bf16,
    check_recipe,
)
from tests.strategies.driving import bytes_of, check_phases, check_state_travels, reference
from tests.strategies.sharing import sparse_task


@pytest.mark.soak  # test_contract.py holds every strategy to this; here with all its options
@pytest.mark.parametrize(
    ("kind", "options", "ranks"),
    [
        *((kind, ":replicas=2,stages=2", 4) for kind in MODELS),
        ("skips", ":replicas=2,stages=2,chunks=3", 4),
        ("mlp", ":replicas=3,stages=1,chunks=2,schedule=gpipe", 3),
        ("tied", ":replicas=1,stages=3", 3),
        ("tied", ":replicas=2,stages=3,chunks=2", 6),
    ],
)
def test_it_trains_the_model_of_single(kind: str, options: str, ranks: int) -> None:
    run = quick_fit(make_task(kind), "hybrid" + options, ranks=ranks, max_steps=30)
    assert distance(reference(kind), run) <= 1e-6
    assert run.losses == pytest.approx(reference(kind).losses, abs=1e-5)
    assert run.exact is True
    check_phases(run)


def test_a_whole_epoch_where_the_last_batch_leaves_a_replica_empty(nothing_left: None) -> None:
    """7 samples, batches of 3, two replicas: the last batch is one sample, so one shard has none."""
    input, target = MODELS["mlp"][1]()
    task = make_task(train=(input[:7], target[:7]), batch_size=3, epochs=4)
    one, run = quick_fit(task), quick_fit(task, "hybrid:replicas=2,stages=2,chunks=2")
    assert distance(one, run) <= 1e-6
    assert run.samples == 28
    assert [row["samples"] for row in run.per_rank] == [20, 20, 8, 8]
    assert run.losses == pytest.approx(one.losses, abs=1e-5)


@pytest.mark.parametrize(
    "model", ["detached", *(pytest.param(name, marks=pytest.mark.soak) for name in ["frozen_first", "picks"])]
)
def test_awkward_models(model: str) -> None:
    check_awkward_models("hybrid:replicas=2,stages=2", 4, model)


def test_accumulation_clipping_momentum_schedule_and_a_tied_weight() -> None:
    check_recipe("hybrid:replicas=2,stages=2", 4)


def test_bf16() -> None:
    check_bf16("hybrid:replicas=2,stages=2", 4)


def test_bytes_are_those_of_the_formula() -> None:
    run = quick_fit(make_task(batch_size=40), "hybrid:replicas=2,stages=2,balance=2+3,chunks=3", max_steps=5)
    assert run.communication_bytes == 2 * bytes_of(mlp().parameters()) + 2 * 40 * 32 * 4
    tied = quick_fit(make_task("tied", batch_size=40), "hybrid:replicas=2,stages=2,balance=2+5", max_steps=5, clip=1.0)
    weight, crossing = 12 * 12 * 4, 2 * 40 * 12 * 4
    held = bytes_of(MODELS["tied"][0]().parameters()) + weight  # by both stages
    assert tied.communication_bytes == 2 * held + crossing + 4 * weight + 4 * 8


def test_its_state_is_that_of_single() -> None:
    check_state_travels("hybrid:replicas=2,stages=2", 4)


def test_batchnorm_is_said_to_be_inexact() -> None:
    run = quick_fit(make_task(model=Normed), "hybrid:replicas=2,stages=2", max_steps=10)
    assert run.exact is False
    assert str(run.exact_reason).startswith("BatchNorm sees a part of each batch at a time")
    whole = quick_fit(make_task(model=Normed), "hybrid:replicas=1,stages=2", max_steps=10)
    assert whole.exact is True
    assert distance(quick_fit(make_task(model=Normed), max_steps=10), whole) <= 1e-6


def test_any_two_of_ranks_replicas_and_stages_give_the_third() -> None:
    assert make_strategy("hybrid:replicas=2,stages=3").ranks == 6
    assert make_strategy("hybrid:replicas=2", 6) == mh.Hybrid(replicas=2, stages=3)
    assert make_strategy("hybrid:stages=3", 6) == mh.Hybrid(replicas=2, stages=3)
    assert str(make_strategy("hybrid", 4)) == "hybrid:replicas=2,stages=2"
    assert make_strategy("hybrid").ranks == 4


@pytest.mark.parametrize(
    ("options", "ranks", "message"),
    [
        (
            "replicas=2,stages=2",
            5,
            r"replicas x stages must be the number of ranks \(replicas: 2, stages: 2, ranks: 5\)",
        ),
        ("replicas=3", 4, r"replicas x stages must be the number of ranks"),
        ("chunks=0", 4, r"hybrid:chunks must be at least 1 \(found 0\)"),
        ("schedule=interleaved", 4, r'hybrid has no schedule "interleaved"'),
    ],
)
def test_bad_options(options: str, ranks: int, message: str) -> None:
    with pytest.raises(mh.BadInput, match=message):
        make_strategy(f"hybrid:{options}", ranks)


@pytest.mark.parametrize(
    ("task", "options", "keywords", "message"),
    [
        (
            make_task,
            "replicas=2,stages=6",
            {},
            r"hybrid cannot use more stages .*\(stages: 6, layers: 5\); use stages = 5 or fewer",
        ),
        (
            sparse_task,
            "replicas=2,stages=2",
            {},
            r'hybrid sums gradients as one dense buffer \(sparse: module "embed"\)',
        ),
        (
            lambda: make_task(model=Normed),
            "",
            {"sync_batchnorm": True},
            r"hybrid does not join BatchNorm over replicas",
        ),
    ],
)
def test_refusals(task: Any, options: str, keywords: Any, message: str) -> None:
    with pytest.raises(mh.Refused, match=message):
        quick_fit(task(), f"hybrid:{options}", max_steps=1, **keywords)


def test_a_failing_stage_ends_the_run(nothing_left: None) -> None:
    check_a_failing_stage_ends_the_run("hybrid:replicas=1,stages=3", 3, 5)


def test_samples_are_counted_once() -> None:
    run = quick_fit(
        make_task(model=lambda: nn.Sequential(nn.Linear(20, 8), nn.Linear(8, 3))), "hybrid", ranks=4, epochs=1
    )
    assert run.samples == SAMPLES
