"""hogwild: nobody waits, staleness is counted, and the pieces work in a loop written by hand."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import manyhands as mh
from manyhands.nn import SharedModel
from tests.conftest import ROOT, distance, make_task, mlp, quick_fit
from tests.strategies.driving import check_phases, drive, furthest, halving
from tests.strategies.sharing import (
    Normed,
    check_every_sample_is_read_once,
    check_failures_end_the_run,
    momentum,
    sparse_task,
)


@pytest.mark.parametrize("options", ["", ":optimizer=shared", ":scale=shard,partition=fixed"])
def test_the_loss_falls_and_everything_is_counted(options: str, nothing_left: None) -> None:
    run = quick_fit(make_task(optimizer=momentum), "hogwild" + options, ranks=3, epochs=2)
    assert run.exact is False
    assert run.samples == 2 * 1003
    assert run.updates == 3 * run.steps
    assert run.staleness is not None
    assert sum(run.staleness["histogram"]) == run.updates
    assert run.communication_bytes == 0
    assert run.epochs[-1]["loss"] < 0.9 * run.epochs[0]["loss"]
    assert any(note.startswith("overlap: on average") for note in run.notes)
    check_phases(run)


def test_one_rank_is_single_with_everything_on() -> None:
    task = make_task(optimizer=momentum, schedule=halving)
    options = {"accumulate": 3, "clip": 0.5, "epochs": 1}
    one = quick_fit(task, **options)
    for strategy in ("hogwild", "hogwild:optimizer=shared", "hogwild:scale=shard"):
        run = quick_fit(task, strategy, ranks=1, **options)
        assert distance(one, run) <= 1e-6
        assert run.staleness == {"mean": 0.0, "max": 0, "histogram": [12]}


def test_a_step_moves_the_weights_as_far_as_single() -> None:
    """From the same weights, the gradients of all shards together are the gradient of the batch."""
    start, one, many = (
        drive(make_task(), *how)[0] for how in (("single", 1, 0, 0), ("single", 1, 0, 1), ("hogwild", 3, 0, 1))
    )
    # all numbers together: of a single one a writer may lose another's update, which is what Hogwild lets happen
    apart, moved = (sum(float((one[name] - other[name]).abs().sum()) for name in one) for other in (many, start))
    assert apart < 0.1 * moved


def test_adam_may_share_its_state_and_bf16_works() -> None:
    task = make_task(optimizer=functools.partial(torch.optim.Adam, lr=0.003))
    run = quick_fit(task, "hogwild:optimizer=shared", ranks=2, epochs=2, precision="bf16")
    assert run.epochs[-1]["loss"] < 0.9 * run.epochs[0]["loss"]


def test_sparse_gradients_write_their_rows_alone() -> None:
    """Words that never occur keep their weights to the last bit, also under weight written by several ranks."""
    words = torch.randint(10, 20, (200, 4), generator=torch.Generator().manual_seed(1))
    task = sparse_task(train=(words, words[:, 0] % 3), batch_size=16)
    start = drive(task, "single", 1, 0, 0)[0]["embed.weight"]
    run = quick_fit(task, "hogwild", ranks=2, epochs=3)
    assert run.weights is not None
    moved = (run.weights["embed.weight"] != start).any(1)
    assert moved[10:20].all()
    assert not moved[:10].any()
    assert not moved[20:].any()
    assert run.epochs[-1]["loss"] < run.epochs[0]["loss"]


def test_state_goes_on_under_single() -> None:
    task = make_task(optimizer=momentum, schedule=halving)
    for strategy in ("hogwild", "hogwild:optimizer=shared"):
        weights, state = drive(task, strategy, 2, 0, 10)
        assert state["updates"] == 10
        onward, _ = drive(task, "single", 1, 10, 20, (weights, state))
        again, _ = drive(task, strategy, 2, 10, 20, (weights, state))
        assert furthest(onward, again) < 0.1


def test_batchnorm_statistics_are_the_mean_over_ranks() -> None:
    run = quick_fit(make_task(model=Normed), "hogwild", ranks=2, epochs=1)
    assert any("BatchNorm statistics are kept by each rank and averaged" in note for note in run.notes)
    assert run.weights is not None
    assert run.weights["norm.running_mean"].abs().sum() > 0
    assert 34 <= run.weights["norm.num_batches_tracked"] < 68  # the largest count: a rank may make shares of another
    assert run.test is not None
    assert run.test["accuracy"] > 0.5


def test_ranks_without_samples_do_not_write() -> None:
    run = quick_fit(make_task(batch_size=2), "hogwild", ranks=3, max_steps=10)
    assert run.updates == 20
    assert run.samples == 20


def test_every_sample_is_read_once() -> None:
    check_every_sample_is_read_once("hogwild", 3)
    check_every_sample_is_read_once("hogwild:partition=fixed", 3)


def test_on_step_can_end_an_asynchronous_run(nothing_left: None) -> None:
    run = quick_fit(make_task(), "hogwild", ranks=2, on_step=lambda figures: figures.step >= 7)
    assert run.status == "stopped"
    assert 7 <= run.steps < 102  # of all epochs; the others may be far ahead when rank 0 says stop


def test_a_failing_or_killed_rank_ends_the_run(nothing_left: None) -> None:
    check_failures_end_the_run("hogwild")


def test_refusals() -> None:
    with pytest.raises(mh.Refused, match="hogwild ranks never meet, so sync_batchnorm cannot work"):
        quick_fit(make_task(), "hogwild", ranks=2, sync_batchnorm=True)
    with pytest.raises(mh.Refused, match="hogwild cannot share the state of SparseAdam"):
        quick_fit(sparse_task(optimizer=torch.optim.SparseAdam), "hogwild:optimizer=shared", ranks=2)
    with pytest.raises(mh.BadInput, match=r'hogwild:scale must be one of global, shard \(found "big"\)'):
        quick_fit(make_task(), "hogwild:scale=big", ranks=2)
    with pytest.raises(mh.BadInput, match=r"hogwild needs at least 1 rank \(found 0\)"):
        mh.Hogwild(ranks=0)


def loop_in_the_docs() -> str:
    page = ROOT / "docs" / "strategies" / "hogwild.md"
    return re.findall(r"^```py\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)[0]


def test_the_loop_written_by_hand_in_the_docs() -> None:
    """As two ranks run it, one after the other; in processes of their own: below."""
    names: dict[str, Any] = {"__name__": "by_hand"}
    exec(compile(loop_in_the_docs(), "hogwild.md", "exec"), names)
    one = SharedModel(torch.nn.Linear(4, 1), ranks=2)
    other = SharedModel(one.model, 2, one.tensors)
    names["work"](0, one)
    names["work"](1, other)
    assert one.updates == 20


@pytest.mark.soak  # three interpreters start
def test_the_script_in_the_docs(tmp_path: Path) -> None:
    (tmp_path / "by_hand.py").write_text(loop_in_the_docs())
    done = subprocess.run([sys.executable, "by_hand.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "20\n", done.stderr


def test_a_shared_model_counts_the_updates_of_others() -> None:
    here, there = SharedModel(mlp(), ranks=2), SharedModel(mlp(), ranks=2)
    there = SharedModel(there.model, 2, here.tensors)
    one, other = here.attach(0), there.attach(1)
    with torch.no_grad():
        next(one.parameters()).fill_(3.0)
    assert torch.equal(next(other.parameters()), next(one.parameters()))
    here.read()
    there.read()
    assert [there.wrote(), there.wrote()] == [0, 0]
    assert here.wrote() == 2
    assert there.wrote() == 1
    assert (here.staleness, there.staleness, here.updates) == ([0, 0, 1], [2, 1], 4)


class NotFinite:
    """A loss that is no number in the third call of one rank; the other is not done before that."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if os.environ.get("RANK") == "0":
            time.sleep(0.01)
        factor = float("nan") if self.calls == 3 and os.environ.get("RANK") == "1" else 1.0
        return torch.nn.functional.cross_entropy(output, target) * factor


def test_who_has_no_finite_loss_takes_the_blame() -> None:
    """Its update went into the shared weights first, so that another rank was named with a step of its own."""
    for _ in range(3):
        with pytest.raises(mh.RankFailed, match=r"rank 1 of 2: the loss of step 3 is nan"):
            quick_fit(make_task(loss=NotFinite()), "hogwild", ranks=2, max_steps=20)
