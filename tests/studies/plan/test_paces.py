"""Paces: ranks with equal work that are not equally fast."""

from __future__ import annotations

import statistics

import pytest

from manyhands.studies.plan.paces import dealt, spread
from tests.studies.plan.test_forecasts import calibration, forecasts

HALVES = [1.2, 1.2, 0.8, 0.8]


def test_the_slowest_of_each_run_are_kept_whichever_ranks_they_were() -> None:
    assert spread([[8.0, 12.0], [6.0, 4.0]]) == pytest.approx([1.2, 0.8])


def test_more_and_fewer_ranks_are_dealt_the_same_shares_of_slow_ones() -> None:
    for ranks in (2, 4, 8, 16):
        paces = dealt({2: [1.0, 1.0], 4: HALVES} if ranks > 2 else {4: HALVES}, ranks)
        assert sorted(paces) == pytest.approx([0.8] * (ranks // 2) + [1.2] * (ranks // 2))
        assert statistics.fmean(paces) == pytest.approx(1.0)
        assert paces == dealt({4: HALVES}, ranks)
    assert dealt({4: HALVES}, 1) == [1.0]
    assert dealt({}, 3) == [1.0, 1.0, 1.0]


def test_those_who_wait_for_each_other_wait_for_the_slowest_and_those_who_help_each_other_do_not() -> None:
    """On 16 virtual cores, of which some were half of a real one, twelve ranks of ddp spent a fifth of each step waiting."""
    rows = forecasts(["ddp", "hogwild"], [4], calibration(paces={4: HALVES}))
    assert rows["ddp", 4].step_ms == pytest.approx(2 * 1.2)
    assert rows["hogwild", 4].step_ms == pytest.approx(2.0)
