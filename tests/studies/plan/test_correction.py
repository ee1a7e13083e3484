"""What trials say of simulations: the share that shrinks with the step, and the seconds that last."""

from __future__ import annotations

import pytest

from manyhands.studies.plan.correction import Correction, corrected


def test_one_trial_is_a_ratio() -> None:
    assert corrected([(5.0, 4.0)], 0.05) == Correction(1.25, 0.0)


def test_seconds_that_did_not_shrink_with_the_step_last() -> None:
    """One ratio of trial to simulation made 1 ms of Python in every step shrink with the work: 16 ranks were forecast far
    too fast."""
    found = corrected([(3.0, 2.0), (5.0, 4.0)], 0.05)
    assert found(2.0) == pytest.approx(3.0)  # as tried
    assert found(0.5) == pytest.approx(1.5, rel=0.06)  # less what may be noise


def test_what_shrank_with_the_step_stays_a_ratio() -> None:
    assert corrected([(2.4, 2.0), (4.8, 4.0)], 0.05) == Correction(pytest.approx(1.2), pytest.approx(0.0))


def test_what_may_be_noise_does_not_last() -> None:
    """Two trials that were 4 % off in unlucky ways would have added a sixth of a step on eight times as many ranks."""
    assert corrected([(2.08, 2.0), (4.0, 4.0)], 0.05) == Correction(pytest.approx(1.04), 0.0)


def test_a_simulation_that_was_too_slow_is_a_ratio() -> None:
    assert corrected([(1.5, 2.0), (3.5, 4.0)], 0.05) == Correction(pytest.approx(0.75), 0.0)


def test_trials_of_equally_long_steps_tell_nothing_apart() -> None:
    assert corrected([(3.0, 2.0), (3.1, 2.1)], 0.05) == Correction(pytest.approx(1.5), 0.0)
