"""What one fit found out about a job serves the next of the same job, and changes nothing about it."""

from __future__ import annotations

import pytest
from torch import Tensor, nn

import manyhands as mh
from manyhands.strategies import make_strategy
from manyhands.strategies.pipeline import Pipeline
from manyhands.studies.slices import Variant, run_slice
from manyhands.training.proof import tried as module
from manyhands.training.proof.tried import Tried
from manyhands.training.run_fit import run_fit
from manyhands.training.settings import FitSettings
from tests.conftest import make_task, quick_fit
from tests.model.test_layout import convolutional


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Probes and cuts."""
    found: list[str] = []
    probe, prepare = module.probe, Pipeline.prepare
    monkeypatch.setattr(module, "probe", lambda *words, **named: found.append("probe") or probe(*words, **named))
    monkeypatch.setattr(Pipeline, "prepare", lambda self, job: found.append("cut") or prepare(self, job))
    return found


def test_a_comparison_tries_its_task_once(seen: list[str]) -> None:
    """Every round of every row tried the job anew: a fifth of the time of a comparison of a GPT."""
    runs = mh.compare(
        make_task(), ["ddp", "pipeline", "hogwild"], ranks=2, rounds=2, max_steps=30, device="cpu", progress=False
    )
    assert [run.status for run in runs] == ["done"] * len(runs)
    assert sorted(seen) == ["cut", "probe", "probe"]  # `single` divides nothing, so less of it is tried
    assert [run.exact for run in runs if run.strategy in ("ddp", "pipeline")] == [True, True]
    seen.clear()
    quick_fit(make_task(), "pipeline", ranks=2, max_steps=3)
    quick_fit(make_task(), "pipeline", ranks=2, max_steps=3)
    assert sorted(seen) == ["cut", "cut", "probe", "probe"]


def test_rows_with_other_batches_are_tried_apart(seen: list[str]) -> None:
    mh.compare(
        make_task(), ["ddp"], ranks=[2, 3], rounds=1, scale_batch=True, max_steps=4, device="cpu", progress=False
    )
    assert seen == ["probe"] * 3


def test_slices_of_a_variant_are_one_job(seen: list[str]) -> None:
    variant = Variant("pipeline", make_task(), make_strategy("pipeline", 2), FitSettings.of(device="cpu"))
    assert run_slice(variant, 0.05)
    assert run_slice(variant, 0.05)
    assert seen == ["probe", "cut"]


def fitted(task: mh.Task, known: Tried | None) -> mh.Run:
    settings = FitSettings.of(device="cpu", threads=1, progress=False, max_steps=20, tried=known)
    return run_fit(task, make_strategy("ddp", 2), settings)


def masked(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output, target, ignore_index=0)


def test_what_is_known_is_told_to_the_job() -> None:
    images, counted = make_task("skips", model=convolutional), make_task(loss=masked)
    for task, field in ((images, "channels_last"), (counted, "weight")):
        known = Tried()
        first, second, alone = fitted(task, known), fitted(task, known), fitted(task, None)
        assert first.weights_sha256 == second.weights_sha256 == alone.weights_sha256
        assert getattr(second, field) == getattr(alone, field)
        assert getattr(second, field)


def test_a_job_that_is_refused_is_refused_each_time() -> None:
    known, task = Tried(), make_task(loss=lambda output, target: output)
    for _ in range(2):
        with pytest.raises(mh.BadInput, match="loss"):
            fitted(task, known)
