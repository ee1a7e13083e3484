"""Slices of variants in turn: who is compared with whom, and what becomes of one that cannot be run."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

import manyhands as mh
from manyhands.record.run import Run
from manyhands.strategies import make_strategy
from manyhands.studies import slices
from manyhands.studies.intervals import interval
from manyhands.studies.slices import Variant, per_sample, run_rounds, speedups, steady_ms
from manyhands.training.settings import FitSettings
from tests.conftest import make_task


def variant(label: str, spec: str = "single", **settings: object) -> Variant:
    return Variant(label, make_task(), make_strategy(spec), FitSettings.of(**settings))


def ran(*durations: float, batch_size: int = 10) -> Run:
    run = Run("task", "single", batch_size=batch_size)
    run.durations_ms = list(durations)
    return run


def test_the_first_steps_of_a_slice_do_not_count() -> None:
    assert steady_ms(ran(100, 1, 2, 3)) == 2
    assert per_sample(ran(100, 1, 2, 3)) == pytest.approx(0.2)


def test_time_spent_on_the_shares_of_others_counts() -> None:
    """hogwild beside a slow rank was promised to be 6.7x faster and was 2.9x: its quick rank had helped after its steps."""
    run = ran(100, 1, 2, 3)
    run.seconds = 0.2
    assert steady_ms(run) == 50
    run.seconds = 0.106
    assert steady_ms(run) == 2


def test_a_variant_is_compared_with_the_base_of_its_own_round() -> None:
    base, other = variant("base"), variant("other")
    base.slices = [ran(10), ran(20), ran(40)]
    other.slices = [ran(5), None, ran(10, batch_size=5)]
    assert speedups(other, base) == [2, 2]
    assert interval([1, 4, 2]) == (2, 1, 4)


def test_rounds_go_there_and_back_and_drop_who_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def noted(one: Variant, seconds: float) -> Run:
        order.append(one.label)
        return ran(1)

    monkeypatch.setattr(slices, "run_slice", noted)
    base, first, second = variant("base"), variant("first"), variant("second")
    run_rounds(base, [first, second], 2, 0.1)
    assert order == ["base", "first", "second", "base", "second", "first"]
    run_rounds(base, [first, second], 2, 0.1, keep=lambda one: one is second)
    assert order[6:] == ["base", "first", "second", "base", "second"]
    assert [len(one.slices) for one in (base, first, second)] == [4, 3, 4]
    run_rounds(base, [first], 3, 0.1, until=time.monotonic() - 1)
    assert len(order) == 11


def test_real_slices_and_one_that_cannot_be_run() -> None:
    base = variant("single")
    refused = variant("ddp, compiled", "locked:ranks=2", compile=True)
    run_rounds(base, [refused, variant("clipped", clip=1.0)], 1, 0.02)
    assert base.pace is not None
    assert base.runs[0].test is None
    assert refused.problem is not None
    assert "cannot be compiled" in refused.problem
    with pytest.raises(mh.RankFailed, match="cannot be compiled"):
        run_rounds(replace(refused, problem=None), [base], 1, 0.02)
