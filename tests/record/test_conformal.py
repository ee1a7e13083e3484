"""Intervals from earlier forecasts hold as often as they promise, whatever the errors look like."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.record.conformal import calibrated
from manyhands.record.scores import Score, scored
from tests.record.forecast_runs import entry, forecast, run

LAWS: dict[str, Callable[[random.Random], float]] = {
    "narrow": lambda source: source.lognormvariate(0.0, 0.03),
    "biased": lambda source: source.lognormvariate(0.4, 0.2),
    "heavy": lambda source: 1 / (1e-3 + source.paretovariate(1.1)),
    "two kinds": lambda source: source.choice((0.5, 1.0)) * source.uniform(0.99, 1.01),
    "ties": lambda source: source.choice((0.9, 1.0, 1.1)),
}


def scores(ratios: Sequence[float], basis: str | None = "simulated") -> list[Score]:
    """One score for each ratio measured / forecast."""
    return scored([entry(forecast(basis=basis))], [run(speed=1000.0 * ratio) for ratio in ratios])


def test_twenty_scores_of_the_same_basis_are_needed() -> None:
    ratios = [1.01 ** (place * (-1) ** place) for place in range(1, 21)]
    bound = pytest.approx((1.01**-17, 1.01**17))  # below it are 17 of 21 gaps
    assert calibrated(scores(ratios[1:]), "simulated") is None
    assert calibrated(scores(ratios), "simulated") == bound
    assert calibrated(scores(ratios), "measured") is None
    mixed = [*scores(ratios), *scores([9.0] * 30, "measured")]
    assert calibrated(mixed, "simulated") == bound
    assert calibrated(mixed, "measured") == pytest.approx((1 / 9, 9.0))
    assert calibrated([], "simulated") is None


def test_what_was_too_high_together_does_not_shift_the_next_interval() -> None:
    """Two comparisons of a slow hour gave intervals of -7 to +0 %, which half of the later forecasts missed."""
    low, high = calibrated(scores([0.93, 0.95] * 12), "simulated") or (1.0, 1.0)
    assert (low, high) == pytest.approx((0.93, 1 / 0.93))


@pytest.mark.parametrize("count", [20, 29, 57])
@pytest.mark.parametrize("law", LAWS)
def test_four_of_five_of_the_next_ratios_lie_inside(law: str, count: int) -> None:
    source, trials, inside = random.Random(f"{law}{count}"), 1500, 0
    base = scores([1.0] * count)
    for _ in range(trials):
        drawn = [LAWS[law](source) for _ in range(count + 1)]
        known = [replaced(one, ratio) for one, ratio in zip(base, drawn, strict=False)]
        found = calibrated(known, "simulated")
        assert found is not None
        inside += found[0] <= drawn[-1] <= found[1]
    assert inside / trials >= 0.8 - 0.03  # three standard errors of 1,500 trials
    if law in ("narrow", "biased", "heavy"):  # and it is no wider than that takes
        assert inside / trials <= 0.8 + 2 / (count + 1) + 0.03


def replaced(one: Score, ratio: float) -> Score:
    return Score(one.forecast, one.made, one.run, 1000.0, 1000.0 * ratio, 1 / ratio - 1, None, None, one.basis)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.floats(0.01, 100.0), min_size=21, max_size=80))
def test_left_out_in_turn_four_of_five_lie_inside(ratios: list[float]) -> None:
    """The guarantee without any chance: of n + 1 values, each left out once, at least 80 % lie in the others' interval."""
    every = [replaced(one, ratio) for one, ratio in zip(scores([1.0] * len(ratios)), ratios, strict=True)]
    inside = 0
    for place, left_out in enumerate(every):
        found = calibrated(every[:place] + every[place + 1 :], "simulated")
        assert found is not None
        inside += found[0] <= left_out.measured / left_out.forecast_speed <= found[1]
    assert inside >= 0.8 * len(ratios)
