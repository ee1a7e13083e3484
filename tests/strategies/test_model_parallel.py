"""model_parallel: the weights of single from layers on several ranks, bytes by formula, refusals with reasons."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import manyhands as mh
from manyhands.model import cut
from manyhands.strategies import make_strategy
from manyhands.strategies.job import StepSettings
from manyhands.strategies.pieces.stages import forget_the_rest
from manyhands.training.build import build
from tests.conftest import MODELS, SAMPLES, distance, make_task, mlp, quick_fit
from tests.strategies.cutting import (
    NAP_MS,
    Gate,
    Normed,
    check_a_failing_stage_ends_the_run,
    check_awkward_models,
    check_bf16,
    check_recipe,
    one_group_each,
    sleepy,
)
from tests.strategies.driving import check_phases, check_state_travels, drive, reference
from tests.strategies.sharing import sparse_task


@pytest.mark.soak  # test_contract.py holds every strategy to this; here with all its options
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("kind", MODELS)
def test_it_trains_the_model_of_single(kind: str, ranks: int) -> None:
    run = quick_fit(make_task(kind), "model_parallel", ranks=ranks, max_steps=30)
    assert distance(reference(kind), run) <= 1e-6
    assert run.losses == pytest.approx(reference(kind).losses, abs=1e-6)
    assert run.exact is True
    check_phases(run)


def test_a_whole_epoch_with_its_short_last_batch(nothing_left: None) -> None:
    run = quick_fit(make_task(), "mp", ranks=2, epochs=1)
    assert distance(reference(epochs=1, max_steps=None), run) <= 1e-6
    assert run.samples == SAMPLES
    assert [row["samples"] for row in run.per_rank] == [SAMPLES] * 2  # each sees every sample, it is counted once
    assert run.test == reference(epochs=1, max_steps=None).test


@pytest.mark.parametrize(
    "model",
    ["detached", *(pytest.param(name, marks=pytest.mark.soak) for name in ["frozen_first", "frozen_last", "picks"])],
)
def test_awkward_models(model: str) -> None:
    check_awkward_models("model_parallel", 3, model)


def test_accumulation_clipping_momentum_schedule_and_a_tied_weight() -> None:
    check_recipe("model_parallel", 3)


def test_batchnorm_sees_the_whole_batch() -> None:
    task = make_task(model=Normed)
    one, run = quick_fit(task, max_steps=30), quick_fit(task, "model_parallel", ranks=3, max_steps=30)
    assert run.exact is True
    assert distance(one, run) <= 1e-6  # running statistics and their counter included


def test_sparse_gradients_stay_in_their_stage() -> None:
    task = sparse_task()
    one, run = quick_fit(task, max_steps=20), quick_fit(task, "model_parallel", ranks=2, max_steps=20)
    assert distance(one, run) <= 1e-6


def test_bf16() -> None:
    check_bf16("model_parallel", 2)


def test_bytes_are_those_of_the_formula() -> None:
    run = quick_fit(make_task(batch_size=40), "model_parallel:balance=2+2+1", ranks=3, max_steps=5)
    crossing = 40 * (32 + 24) * 4  # one row of each cut's width a sample
    assert run.communication_bytes == 2 * crossing  # forward and back
    tied = quick_fit(make_task("tied", batch_size=40), "mp:balance=2+5", ranks=2, max_steps=5, clip=1.0)
    assert tied.communication_bytes == 2 * 40 * 12 * 4 + 2 * 12 * 12 * 4 + 2 * 8
    frozen = make_task(
        model=lambda: nn.Sequential(nn.Linear(20, 32).requires_grad_(False), nn.Linear(32, 3)), batch_size=40
    )
    assert quick_fit(frozen, "mp", ranks=2, max_steps=5).communication_bytes == 40 * 32 * 4  # nothing comes back


@pytest.mark.soak  # timing: wants a quiet machine
def test_all_but_one_rank_wait() -> None:
    run = quick_fit(make_task(model=sleepy), "model_parallel:balance=1+2", ranks=2, max_steps=4)
    assert run.phases_ms is not None
    nap = 30 * NAP_MS  # of each of the two ranks, while the other waits
    assert nap <= run.phases_ms["forward"] < 1.3 * nap
    assert 0.8 * nap < run.phases_ms["wait"] < 1.5 * nap


def test_its_state_is_that_of_single() -> None:
    check_state_travels("model_parallel", 3)


def test_groups_of_an_optimizer_come_together() -> None:
    """A stage without parameters of one kind has an empty group where the others have some."""
    task = make_task(
        model=lambda: nn.Sequential(nn.Linear(20, 8, bias=False), nn.Linear(8, 3)), optimizer=one_group_each
    )
    _, state = drive(task, "model_parallel", 2, 0, 3)
    groups = {tuple(group["names"]): group["lr"] for group in state["optimizer"]["groups"]}
    assert groups == {("0.weight", "1.weight"): 0.05, ("1.bias",): 0.1}
    assert set(state["optimizer"]["state"]) == {"0.weight", "1.weight", "1.bias"}


def test_a_rank_keeps_only_its_own_layers() -> None:
    model = mlp()
    pieces = cut(model, 2, torch.randn(4, 20), [2, 3])
    stage = pieces.stage(1, model)
    forget_the_rest(model, [stage])
    stored = {name: tensor.untyped_storage().nbytes() for name, tensor in model.state_dict().items()}
    assert stored["0.weight"] == 4
    assert stored["2.weight"] == 32 * 24 * 4
    assert model[0].weight.shape == (32, 20)  # type: ignore[index]


def test_one_rank_is_the_whole_model() -> None:
    run = quick_fit(make_task(), "model_parallel", ranks=1, max_steps=30)
    assert distance(reference(), run) == 0
    assert run.communication_bytes == 0


@pytest.mark.parametrize(
    ("changes", "options", "ranks", "message"),
    [
        (
            {},
            "",
            6,
            r"model_parallel cannot use more stages than the model has layers \(stages: 6, layers: 5\); use --ranks 5 or fewer",
        ),
        ({"model": Gate}, "", 2, r"model_parallel cannot cut Gate: its forward branches on.* use ddp"),
        ({}, ":balance=1+1", 2, r"balance \[1, 1\] must give each of 2 stages at least 1 of the model's 5 layers"),
        ({}, ":balance=tmie", 2, r'no balance named "tmie"; did you mean "time"\?'),
        ({}, ":balance=2+nine", 3, r'the model has no layer named "nine"'),
    ],
)
def test_refusals(changes: dict[str, Any], options: str, ranks: int, message: str) -> None:
    with pytest.raises((mh.Refused, mh.BadInput), match=message):
        quick_fit(make_task(**changes), "model_parallel" + options, ranks=ranks, max_steps=1)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_a_scripted_model_is_refused() -> None:
    task = make_task(model=lambda: torch.jit.script(mlp()))
    with pytest.raises(
        mh.Refused, match="model_parallel cannot look into a scripted model to cut it; give the model it"
    ):
        make_strategy("model_parallel", 2).prepare(build(task, StepSettings()))


def test_a_failing_stage_ends_the_run(nothing_left: None) -> None:
    check_a_failing_stage_ends_the_run("model_parallel", 3, 5)


def test_it_prints_compares_and_says_what_each_rank_reads() -> None:
    strategy = make_strategy("mp:balance=2+3", 2)
    assert str(strategy) == "model_parallel:balance=2+3"
    assert strategy == mh.ModelParallel(ranks=2, balance=(2, 3))
    job = build(make_task(), StepSettings())
    assert len(strategy.prepare(job)) == 2
