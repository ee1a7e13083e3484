"""The search for the fastest settings, on jobs whose speed the test makes up."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

import manyhands as mh
from manyhands.record.run import Run
from manyhands.studies import slices
from manyhands.studies import tune as module
from manyhands.studies.slices import Variant
from tests.breakable import toy
from tests.conftest import Command


class Samples(Dataset[Any]):
    def __len__(self) -> int:
        return 640

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((12,), float(index)), index % 2


Milliseconds = Callable[[Variant], float]


@pytest.fixture
def paced(monkeypatch: pytest.MonkeyPatch) -> Callable[[Milliseconds], list[str]]:
    """Slices whose steps take as long as a function says, on a clock of their own: a second for each."""

    def made(milliseconds: Milliseconds) -> list[str]:
        order: list[str] = []

        def run_slice(variant: Variant, seconds: float) -> Run:
            order.append(variant.label)
            run = Run("task", "ddp", batch_size=variant.task.batch_size)
            run.durations_ms = [milliseconds(variant)] * 8
            return run

        clock = SimpleNamespace(monotonic=lambda: float(len(order)))
        monkeypatch.setattr(slices, "run_slice", run_slice)
        monkeypatch.setattr(slices, "time", clock)
        monkeypatch.setattr(module, "time", clock)
        return order

    return made


def job(**changes: Any) -> mh.Task:
    return toy(train=Samples(), test=None, **changes)


def by_workers(variant: Variant) -> float:
    return 10 / (1 + min(4, variant.settings.step.loader_workers or 0))


def test_the_fastest_is_found_by_halving(paced: Any) -> None:
    order = paced(by_workers)
    found = mh.tune(job(), "ddp", ["loader_workers"], ranks=2)
    assert found["best"] == {"loader_workers": 4}  # 8 and 16 are as fast, and cost more
    assert (found["speedup"], found["interval"]) == (pytest.approx(5), [pytest.approx(5)] * 2)
    assert found["command"] == "manyhands train toy ddp --ranks 2 --loader-workers 4"
    assert found["stopped"] == "every value was tried"
    rounds = {one["settings"]["loader_workers"]: one["rounds"] for one in found["tried"]}
    assert rounds[1] == rounds[2] == 2  # the slower half was left out after the first rung
    assert rounds[4] > rounds[16] >= 4
    assert order[:7] == [f"loader_workers={count}" for count in (0, 1, 2, 4, 8, 16, 0)]
    assert found["tried"][0]["samples_per_second"] == pytest.approx(1600)


def test_settings_are_searched_one_after_the_other(paced: Any) -> None:
    paced(lambda variant: by_workers(variant) * (1 + abs(variant.strategy.chunks - 8)))  # type: ignore[attr-defined]
    found = mh.tune(job(), "pipeline", ["chunks", "loader_workers", "bucket_mb"], ranks=2)
    assert found["best"] == {"loader_workers": 4, "chunks": 8}
    assert found["speedup"] == pytest.approx(25)
    assert found["command"] == "manyhands train toy pipeline:chunks=8 --ranks 2 --loader-workers 4"
    assert found["not_tried"] == [{"setting": "bucket_mb", "reason": "pipeline has no such option"}]


def test_where_nothing_helps_the_default_stays(paced: Any) -> None:
    paced(lambda variant: 10.0)
    found = mh.tune(job(), "ddp", ranks=2, threads=1)
    assert (found["speedup"], found["interval"], found["rate"]) == (1, [1, 1], None)
    assert found["best"]["loader_workers"] == 0
    assert found["command"] == "manyhands train toy ddp --ranks 2 --threads 1"


def test_the_search_stops_when_the_budget_is_spent(paced: Any) -> None:
    order = paced(by_workers)
    found = mh.tune(job(), "ddp", ["loader_workers", "batch_size"], ranks=2, budget=12)
    assert found["stopped"] == "the budget of 12 s was spent"
    assert len(order) <= 20
    assert {"setting": "batch_size", "reason": "the budget was spent before"} in found["not_tried"]


def test_one_round_is_no_proof() -> None:
    """A search that was cut short once called a value 2.74 times as fast, in an interval from 2.74 to 2.74."""
    assert not module._clearly([2.74])
    assert not module._clearly([2.7, 0.9])
    assert not module._clearly([1.01, 1.02])
    assert module._clearly([1.2, 1.1])


def test_data_in_memory_needs_no_workers(paced: Any) -> None:
    paced(lambda variant: 10.0)
    found = mh.tune(toy(), "ddp", ["loader_workers"], ranks=2)
    assert found["not_tried"] == [{"setting": "loader_workers", "reason": "the data is in memory"}]
    assert len(found["tried"]) == 1


def test_batches_that_do_not_fit_are_not_tried(paced: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    paced(lambda variant: 10.0)
    needed = module.needs
    monkeypatch.setattr(module, "needs", lambda *given: module.Needs(**{**vars(needed(*given)), "sample": 1e7}))
    monkeypatch.setattr(module, "free_memory", lambda: 1e9)
    found = mh.tune(job(batch_size=32), "ddp", ["batch_size"], ranks=2)
    assert [one["settings"]["batch_size"] for one in found["tried"]] == [32, 16, 64]
    assert [one["reason"] for one in found["not_tried"]] == [
        "batch_size=128 needs about 1.4 GB of memory, and 1.0 GB are free",
        "batch_size=256 needs about 2.7 GB of memory, and 1.0 GB are free",
    ]


def test_another_batch_size_comes_with_its_rate(paced: Any) -> None:
    paced(lambda variant: 10.0)
    found = mh.tune(job(batch_size=32), "ddp", ["batch_size"], ranks=2, given={"seed": 3})
    assert found["best"] == {"batch_size": 256}
    assert "set the learning rate to 0.8 instead of 0.1 (linear scaling)" in found["rate"]
    assert found["command"] == "manyhands train toy ddp --ranks 2 --seed 3 --batch-size 256"

    def scaled(count: int) -> mh.Task:
        return job(batch_size=count, optimizer=lambda named: torch.optim.SGD(named, lr=count / 100))

    found = mh.tune(scaled(32), "ddp", ["batch_size"], ranks=2, with_batch=scaled)
    assert "the task's recipe sets its rate by the batch: 2.56 instead of 0.32" in found["rate"]


def test_a_value_that_cannot_be_run_is_left_out(paced: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    paced(by_workers)
    fast = slices.run_slice

    def refuses(variant: Variant, seconds: float) -> Run | None:
        if variant.settings.step.loader_workers == 4:
            variant.problem = "no"
            return None
        return fast(variant, seconds)

    monkeypatch.setattr(slices, "run_slice", refuses)
    found = mh.tune(job(), "ddp", ["loader_workers"], ranks=2)
    assert found["best"] == {"loader_workers": 8}
    assert found["not_tried"] == [{"setting": "loader_workers", "reason": "loader_workers=4: no"}]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"settings": ["loader_worker"]}, 'tune knows no setting "loader_worker"; did you mean "loader_workers"'),
        ({"settings": []}, "tune needs a setting to search"),
        ({"budget": 3}, r"budget must be at least 10 seconds \(found 3\)"),
    ],
)
def test_refusals(given: dict[str, Any], message: str) -> None:
    with pytest.raises(mh.BadInput, match=message):
        mh.tune(job(), "ddp", ranks=2, **given)


def test_the_command(command: Command, paced: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paced(by_workers)
    file = tmp_path / "mine.py"
    file.write_text("from tests.studies.test_tune import job\ntask = job()\n")
    words = ("tune", str(file), "ddp", "--ranks", "2", "--for", "loader_workers,chunks", "--batch-size", "64")
    code, out, err = command(*words, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["command"] == f"manyhands train {file} ddp --ranks 2 --batch-size 64 --loader-workers 4"
    code, out, err = command(*words, "--quiet")
    assert (code, err) == (0, "")
    assert "best: loader_workers=4: 5.00x the default (5.00 to 5.00)" in out
    assert out.splitlines()[-1] == found["command"]
    assert all(len(line) <= 80 for line in out.splitlines()[:-1])


@pytest.mark.soak
def test_a_real_search(command: Command) -> None:
    code, out, err = command(
        "tune", "glyphs", "ddp", "--ranks", "2", "--for", "bucket_mb,threads", "--budget", "20", "--json"
    )
    assert code == 0, err
    assert json.loads(out)["speedup"] >= 1
