"""What is measured of a job, and when nothing more is."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from manyhands.record.run import Run
from manyhands.strategies import make_strategy
from manyhands.studies import slices
from manyhands.studies.diagnose.changes import Change
from manyhands.studies.diagnose.job import Diagnosed
from manyhands.studies.diagnose.measured import Measured
from manyhands.studies.diagnose.whole import Parts
from manyhands.studies.slices import Variant
from manyhands.training.settings import FitSettings
from tests.conftest import make_task


def ran(milliseconds: float) -> Run:
    run = Run("task", "single", batch_size=30, threads=1, device="cpu")
    run.durations_ms = [milliseconds] * 8
    run.phases_ms = {"forward": milliseconds / 2, "backward": milliseconds / 2}
    return run


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Measured:
    job = Diagnosed.of(make_task(), make_strategy("single"), FitSettings())
    measured = Measured(job, ran(10))
    measured.base.slices = [ran(10)]
    monkeypatch.setattr(Measured, "parts", lambda self: Parts(1.0, 0.0, 10.0, 1.0, 0.0, 0.0))
    return measured


def test_a_budget_that_ends_within_a_round(found: Measured, monkeypatch: pytest.MonkeyPatch) -> None:
    """What had not had its turn yet was asked for its gain, and the diagnosis ended in a traceback."""
    made: list[str] = []

    def one(variant: Variant, seconds: float) -> Run:
        made.append(variant.label)
        return ran(10)

    monkeypatch.setattr(slices, "run_slice", one)
    monkeypatch.setattr(slices, "time", SimpleNamespace(monotonic=lambda: 2.0 * len(made)))
    found.experiment(3.0, 120, lambda text: None)
    assert 2 == len(made) < 1 + len(found.tried)
    assert {"change": found.tried[-1].label, "reason": "the budget was spent; use a larger --budget"} in found.skipped
    assert [one["change"] for one in found.experiments(found.parts())][: len(made) - 1] == made[1:]


def test_steps_that_hardly_matter_are_left_alone(found: Measured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Measured, "parts", lambda self: Parts(1.0, 0.0, 2.0, 20.0, 0.0, 0.0))
    found.experiment(time.monotonic() + 100, 120, lambda text: None)
    assert found.tried == []
    assert found.skipped == [{"change": "anything about the steps", "reason": "steps are 9% of the job's time"}]
    assert [(one["change"], round(one["speedup"], 1)) for one in found.experiments(found.parts())] == [
        ("no evaluation", 10.9)
    ]


@pytest.mark.parametrize(("then", "counts"), [(12.0, True), (30.0, False)])
def test_a_larger_batch_shows_a_fixed_cost_only_where_its_passes_hardly_grow(
    found: Measured, then: float, counts: bool
) -> None:
    """A slow optimizer beside passes that grow with the batch was taken for steps that are too small."""
    larger = found.job.variant("batches of 120", task={"batch_size": 120})
    larger.slices = [ran(then)]
    found.tried = [Change(larger, measures="launch")]
    assert ("launch" in found.gains()) == counts
