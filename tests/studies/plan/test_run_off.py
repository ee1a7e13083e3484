"""The run-off: who is in it, and what it does with the time that is left."""

from __future__ import annotations

import time

import pytest

from manyhands.record.run import Run
from manyhands.strategies import make_strategy
from manyhands.studies.plan import run_off as module
from manyhands.studies.plan.run_off import finalists, run_off
from manyhands.studies.slices import Variant
from manyhands.training.settings import FitSettings
from tests.conftest import make_task


def slice_of(step_ms: float) -> Run:
    run = Run("toy", "ddp")
    run.durations_ms = [step_ms] * 40
    return run


def variant(label: str, *steps_ms: float) -> Variant:
    found = Variant(label, make_task(), make_strategy("single"), FitSettings.of())
    found.slices = [slice_of(step_ms) for step_ms in steps_ms]
    return found


def test_the_three_rows_about_as_fast_as_the_fastest_are_in_it() -> None:
    rows = [variant("a", 5.0), variant("b", 4.0, 4.2, 4.1), variant("c", 4.3), variant("d", 4.2), variant("e", 4.4)]
    rows.append(variant("never tried"))
    rows.append(variant("failed", 1.0))
    rows[-1].problem = "it broke"
    assert [row.label for row in finalists(rows)] == ["b", "d", "c"]


def test_on_a_machine_that_varies_more_rows_may_be_the_fastest() -> None:
    """Slices of one row differed by half, and a run-off among rows within 10 % had a single one in it."""
    rows = [variant("ahead", 4.0, 4.1, 6.0), variant("perhaps", 5.0, 5.5, 9.0), variant("behind", 7.0, 7.5, 8.0)]
    assert [row.label for row in finalists(rows)] == ["ahead", "perhaps"]


def test_slices_go_to_the_finalists_in_turn_until_one_is_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """The luckiest of two equal rows was picked: three short slices each, whatever the budget had left."""
    lucky, better = variant("lucky", 3.9, 4.0, 4.1), variant("better", 4.1, 4.1, 4.1)
    slow = variant("slow", 8.0)
    paces = {"lucky": 4.9, "better": 4.1}
    monkeypatch.setattr(module, "run_slice", lambda one, seconds: slice_of(paces[one.label]))
    told: list[str] = []
    run_off([lucky, better, slow], time.monotonic() + 1000, 1.0, 1.0, told.append)
    assert told[:4] == ["run-off: lucky", "run-off: better"] * 2
    assert finalists([lucky, better, slow])[0] is better
    assert len(slow.slices) == 1


@pytest.mark.parametrize(("rows", "left"), [(1, 1000.0), (2, 1.5)])
def test_a_lone_finalist_and_a_spent_budget_end_it(rows: int, left: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "run_slice", lambda one, seconds: pytest.fail("nothing was left to find out"))
    run_off([variant("a", 4.0)] * rows, time.monotonic() + left, 1.0, 1.0, lambda text: None)
