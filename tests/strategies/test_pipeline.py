"""pipeline: the weights of single under every schedule and any chunks, the bubble in the record, refusals."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import manyhands as mh
from manyhands.strategies import make_strategy
from manyhands.strategies.pieces.pipeline_schedules import plan
from manyhands.strategies.pieces.pipeline_timeline import simulate
from tests.conftest import MODELS, SAMPLES, distance, make_task, quick_fit
from tests.strategies.cutting import (
    Gate,
    Normed,
    check_a_failing_stage_ends_the_run,
    check_awkward_models,
    check_bf16,
    check_recipe,
    sleepy,
)
from tests.strategies.driving import check_phases, check_state_travels, reference


@pytest.mark.soak  # test_contract.py holds every strategy to this; here with all its options
@pytest.mark.parametrize(
    ("kind", "options", "ranks"),
    [
        *((kind, "", ranks) for kind in MODELS for ranks in (2, 3)),
        ("mlp", ":schedule=gpipe,chunks=7", 2),
        ("skips", ":schedule=gpipe", 3),
        ("skips", ":split_size=8", 2),
        ("mlp", ":chunks=100", 3),  # more chunks than samples: one sample each
        ("mlp", ":schedule=interleaved", 2),
        ("tied", ":schedule=interleaved,chunks=3", 2),  # the tied weight's two stages live on one rank
        ("skips", ":schedule=interleaved,stages_per_rank=3,chunks=5", 2),
        ("dict", ":transport=gloo", 2),
    ],
)
def test_it_trains_the_model_of_single(kind: str, options: str, ranks: int) -> None:
    run = quick_fit(make_task(kind), "pipeline" + options, ranks=ranks, max_steps=30)
    assert distance(reference(kind), run) <= 1e-6
    assert run.losses == pytest.approx(reference(kind).losses, abs=1e-5)
    assert run.exact is True
    check_phases(run)


@pytest.mark.parametrize(
    "options", [":chunks=7", pytest.param(":split_size=8", marks=pytest.mark.soak), ":schedule=interleaved"]
)
def test_a_whole_epoch_with_its_short_last_batch(options: str, nothing_left: None) -> None:
    run = quick_fit(make_task(), "pp" + options, ranks=2, epochs=1)
    assert distance(reference(epochs=1, max_steps=None), run) <= 1e-6
    assert run.samples == SAMPLES


@pytest.mark.parametrize(
    "model",
    ["detached", "picks", *(pytest.param(name, marks=pytest.mark.soak) for name in ("frozen_first", "frozen_last"))],
)
def test_awkward_models(model: str) -> None:
    check_awkward_models("pipeline", 3, model)


def test_a_cut_in_front_of_a_detach() -> None:
    """By measured times the cut falls here only now and then."""
    check_awkward_models("pipeline:balance=1+1+4", 3, "detached")


@pytest.mark.parametrize("options", ["", ":schedule=interleaved,chunks=2"])
def test_accumulation_clipping_momentum_schedule_and_a_tied_weight(options: str) -> None:
    check_recipe("pipeline" + options, 2)


def test_bf16() -> None:
    check_bf16("pipeline", 2)


def test_batchnorm_sees_a_chunk_unless_there_is_only_one() -> None:
    task = make_task(model=Normed)
    one = quick_fit(task, max_steps=20)
    cut_up = quick_fit(task, "pipeline", ranks=2, max_steps=20)
    assert cut_up.exact is False
    assert cut_up.exact_reason == "BatchNorm sees one chunk of each batch at a time; with chunks=1 it sees the whole"
    assert distance(one, cut_up) > 1e-4
    whole = quick_fit(task, "pipeline:chunks=1", ranks=2, max_steps=20)
    assert whole.exact is True
    assert distance(one, whole) <= 1e-6


def test_one_rank_accumulates_over_chunks() -> None:
    run = quick_fit(make_task(), "pipeline", ranks=1, max_steps=30)
    assert distance(reference(), run) <= 1e-6
    noisy = make_task(model=lambda: nn.Sequential(nn.Linear(20, 8), nn.Dropout(0.5), nn.Linear(8, 3)))
    run = quick_fit(noisy, "pipeline", ranks=1, max_steps=2)
    assert run.exact is False
    assert (
        run.exact_reason == "random numbers (dropout and the like) are drawn in Dropout (1): every chunk draws its own"
    )


@pytest.mark.parametrize("options", [":balance=2+2+1", ":balance=2+2+1,chunks=7,schedule=gpipe"])
def test_bytes_are_those_of_the_formula(options: str) -> None:
    run = quick_fit(make_task(batch_size=40), "pipeline" + options, ranks=3, max_steps=5)
    assert run.communication_bytes == 2 * 40 * (32 + 24) * 4


@pytest.mark.soak  # timing: wants a quiet machine
def test_wait_is_the_bubble() -> None:
    """Two ranks nap 120 ms a step each; the schedules say how much of the step they wait."""
    shares, steps = {}, {}
    for chunks in (1, 6):
        options = f"balance=1+2,chunks={chunks},schedule=gpipe"
        run = quick_fit(make_task(model=sleepy), f"pipeline:{options}", ranks=2, max_steps=5)
        assert run.phases_ms is not None
        assert run.step_ms is not None
        shares[chunks] = run.phases_ms["wait"] / sum(run.phases_ms.values())
        steps[chunks] = run.step_ms["median"]
        foretold = simulate([plan("gpipe", rank, 2, chunks) for rank in range(2)], 1.0, 0.0).bubble
        assert shares[chunks] == pytest.approx(foretold, abs=0.15)
    assert shares[6] < shares[1]
    assert steps[6] < 0.85 * steps[1]  # the stages work at the same time


def test_its_state_is_that_of_single() -> None:
    check_state_travels("pipeline", 3)


def test_state_of_several_stages_a_rank_is_that_of_single() -> None:
    check_state_travels("pipeline:schedule=interleaved", 2)


def dropping() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 8), nn.Dropout(0.5), nn.Linear(8, 3))


def test_dropout_and_its_reason() -> None:
    strategy = "pipeline:balance=parameters"  # by measured times the cut, and so who draws, may differ between runs
    run = quick_fit(make_task(model=dropping), strategy, ranks=2, max_steps=20)
    assert run.exact is False
    assert (
        run.exact_reason == "random numbers (dropout and the like) are drawn in Dropout (1): every chunk draws its own"
    )
    again = quick_fit(make_task(model=dropping), strategy, ranks=2, max_steps=20)
    assert again.weights_sha256 == run.weights_sha256  # seeded, so the same every time


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("chunks=0", r"pipeline:chunks must be at least 1 \(found 0\)"),
        ("split_size=0", r"pipeline:split_size must be at least 1 \(found 0\)"),
        ("schedule=1fb1", r'pipeline has no schedule "1fb1"; did you mean "1f1b"\?'),
        (
            "stages_per_rank=2",
            r"pipeline:schedule=1f1b runs one stage per rank \(stages_per_rank: 2\); use schedule=interleaved",
        ),
        ("stages_per_rank=0", r"pipeline:stages_per_rank must be at least 1 \(found 0\)"),
        (
            "schedule=interleaved,ranks=1",
            r"pipeline:schedule=interleaved needs at least 2 ranks \(found 1\); use schedule=1f1b",
        ),
    ],
)
def test_bad_options(options: str, message: str) -> None:
    with pytest.raises(mh.BadInput, match=message):
        make_strategy(f"pipeline:{options}")


@pytest.mark.parametrize(
    ("changes", "options", "ranks", "keywords", "message"),
    [
        (
            {},
            "",
            6,
            {},
            r"pipeline cannot use more stages than the model has layers \(stages: 6, layers: 5\); use --ranks 5 or fewer",
        ),
        ({}, ":schedule=interleaved", 3, {}, r"\(stages: 6, layers: 5\); use ranks x stages_per_rank = 5 or fewer"),
        ({"model": Gate}, "", 2, {}, r"pipeline cannot cut Gate: its forward branches on"),
        (
            {"model": Normed},
            "",
            2,
            {"sync_batchnorm": True},
            r"pipeline passes chunks one after the other, so sync_batchnorm",
        ),
    ],
)
def test_refusals(changes: Any, options: str, ranks: int, keywords: Any, message: str) -> None:
    with pytest.raises(mh.Refused, match=message):
        quick_fit(make_task(**changes), "pipeline" + options, ranks=ranks, max_steps=1, **keywords)


def test_a_failing_stage_ends_the_run(nothing_left: None) -> None:
    check_a_failing_stage_ends_the_run("pipeline", 3, 2)  # four chunks a step: the fifth pass is in step 2


def test_it_prints_and_compares() -> None:
    assert str(make_strategy("pp:chunks=8,schedule=gpipe", 2)) == "pipeline:chunks=8,schedule=gpipe"
    assert make_strategy("pipeline", 2) == mh.Pipeline(ranks=2)
    assert make_strategy("pipeline:chunks=8", 2) != mh.Pipeline(ranks=2)


def test_weight_gradients_late_or_along_train_the_same_model() -> None:
    late = quick_fit(make_task("skips"), "pipeline:weights=late", ranks=2, max_steps=12)
    along = quick_fit(make_task("skips"), "pipeline:weights=along", ranks=2, max_steps=12)
    assert distance(late, along) < 1e-6
    with pytest.raises(mh.BadInput, match='pipeline:weights must be "late" or "along"'):
        make_strategy("pipeline:weights=never", 2)


@pytest.mark.soak
def test_where_a_model_with_channels_last_is_cut_does_not_show_in_the_last_bit() -> None:
    """What crossed the cut came with its channels first, and layers behind it summed in another order."""

    def model() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2),
            nn.Conv2d(32, 16, 3, padding=1), nn.Flatten(), nn.Linear(16 * 9, 3),
        )  # fmt: skip

    task = make_task("skips", model=model)
    runs = [quick_fit(task, f"pipeline:balance={k}+{7 - k}", ranks=2, max_steps=4) for k in (1, 3, 5)]
    assert runs[0].channels_last
    assert len({run.weights_sha256 for run in runs}) == 1


class Autoencoder(nn.Module):
    """Uses a layer's weight a second time, outside of the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(20, 64), nn.Linear(64, 64), nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.b(torch.tanh(self.a(x))))
        return self.c(nn.functional.linear(h, self.b.weight.t()))


def sometimes_late(output: Tensor, target: Tensor) -> Tensor:
    time.sleep(os.urandom(1)[0] % 2 / 100)  # random and torch are seeded
    return nn.functional.cross_entropy(output, target)


@pytest.mark.soak
def test_who_was_late_does_not_show_in_the_last_bit() -> None:
    """A weight that autograd adds to as well got its two gradients in the order in which messages came."""
    task = make_task("mlp", model=Autoencoder, loss=sometimes_late, batch_size=64)
    runs = [quick_fit(task, "pipeline:chunks=8,balance=6+1", ranks=2, max_steps=5) for _ in range(3)]
    assert len({run.weights_sha256 for run in runs}) == 1


def test_where_the_model_is_cut_does_not_show_in_the_last_bit() -> None:
    """The cut is by measured times: the first rank once summed weight gradients in another order than the rest did."""
    wide = make_task(
        model=lambda: nn.Sequential(
            nn.Linear(20, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 3)
        ),
        batch_size=128,
    )
    one, two = (quick_fit(wide, f"pipeline:balance={cut}", ranks=2, max_steps=3) for cut in ("3+2", "2+3"))
    assert one.weights_sha256 == two.weights_sha256
    assert distance(one, quick_fit(wide, "single", max_steps=3)) <= 1e-6
