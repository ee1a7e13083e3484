"""Goodput in closed form, against simulations and limits; the best interval against Young's, Daly's and the exact one."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.errors import BadInput
from manyhands.studies.plan import simulated_failures
from manyhands.studies.plan.failures import (
    Failures,
    best_checkpoint_interval,
    dalys_interval,
    goodput,
    youngs_interval,
)
from manyhands.studies.plan.simulated_failures import simulate_wall_seconds, simulated_goodput

DAY = 86400.0
QUICK = settings(derandomize=True, deadline=None)


def walked(
    intervals: int, interval: float, checkpoint: float, mean: float, restart: float, draw: random.Random
) -> float:
    """One run, told event by event on an absolute clock: an independent reading of what the simulation claims."""
    now, failure, left = 0.0, draw.expovariate(1 / mean), intervals
    while left:
        if failure > now + interval + checkpoint:
            now, left = now + interval + checkpoint, left - 1
            continue
        now, failure = failure, failure + draw.expovariate(1 / mean)
        while failure < now + restart:
            now, failure = failure, failure + draw.expovariate(1 / mean)
        now += restart
    return now


# ---------------------------------------------------------------- closed form and limits


@QUICK
@given(st.floats(1, 1e6), st.floats(0, 1e4))
def test_without_failures_only_checkpoints_cost(interval: float, checkpoint: float) -> None:
    assert goodput(interval, checkpoint, Failures(), 1000) == pytest.approx(1 - checkpoint / (interval + checkpoint))
    assert goodput(interval, checkpoint, Failures(1e18), 1) == pytest.approx(interval / (interval + checkpoint))


def test_the_formula() -> None:
    mean, interval, checkpoint, restart = 2592.0, 300.0, 20.0, 120.0
    expected = interval / (mean * math.exp(restart / mean) * (math.exp((interval + checkpoint) / mean) - 1))
    assert goodput(interval, checkpoint, Failures(30 * DAY, restart), 1000) == pytest.approx(expected)


def test_a_thousand_hosts_fail_a_thousand_times_as_often() -> None:
    assert Failures(30 * DAY).mean_seconds_of(1000) == pytest.approx(2592)
    assert goodput(300, 20, Failures(30 * DAY, 60), 1000) == pytest.approx(goodput(300, 20, Failures(2592, 60), 1))


@QUICK
@given(st.floats(1, 1e5), st.floats(0, 1e4), st.floats(1e-3, 1e9), st.floats(0, 1e6))
def test_goodput_is_a_share_that_failures_only_lower(
    interval: float, checkpoint: float, mean: float, restart: float
) -> None:
    share = goodput(interval, checkpoint, Failures(mean, restart), 1)
    assert 0 <= share <= interval / (interval + checkpoint) * (1 + 1e-9)
    assert goodput(interval, checkpoint, Failures(mean, restart), 2) <= share * (1 + 1e-9)


# ---------------------------------------------------------------- simulation


@settings(derandomize=True, deadline=None, max_examples=25)
@given(
    st.floats(0.05, 2.0),
    st.floats(0.0, 0.3),
    st.floats(0.0, 0.5),
    st.integers(1, 2000),
    st.sampled_from([1, 5, 20]),
    st.integers(0, 10**6),
)
def test_the_simulation_agrees_with_the_closed_form(
    interval: float, checkpoint: float, restart: float, hosts: int, intervals: int, seed: int
) -> None:
    """Times in units of the mean time between failures. 5 standard errors: the 25 examples are always the same."""
    failures = Failures(1.0 * hosts, restart)
    share, error = simulated_goodput(interval, checkpoint, failures, hosts, intervals=intervals, seed=seed)
    assert abs(share - goodput(interval, checkpoint, failures, hosts)) < 5 * error
    assert error < 0.05 * share


@pytest.mark.parametrize(("intervals", "restart"), [(1, 0.0), (10, 0.2), (30, 1.0)])
def test_a_run_told_event_by_event_has_the_same_distribution(intervals: int, restart: float) -> None:
    interval, checkpoint, runs, draw = 0.5, 0.1, 2000, random.Random(0)
    told = np.array([walked(intervals, interval, checkpoint, 1.0, restart, draw) for _ in range(runs)])
    rng, work = np.random.default_rng(0), np.full(runs, intervals * interval)
    found = simulate_wall_seconds(work, interval, checkpoint, Failures(7.0, restart), 7, rng)
    assert abs(told.mean() - found.mean()) < 4 * math.hypot(told.std(), found.std()) / math.sqrt(runs)
    assert found.std() == pytest.approx(told.std(), rel=0.12)
    assert np.quantile(found, (0.1, 0.9)) == pytest.approx(np.quantile(told, (0.1, 0.9)), rel=0.06)


def test_runs_with_very_many_failures_are_simulated_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same runs, once whole and once as ten times as many failures as are simulated."""
    arguments = (np.full(1000, 500.0), 0.5, 0.1, Failures(1.0, 0.1), 1)
    whole = simulate_wall_seconds(*arguments, np.random.default_rng(0))
    monkeypatch.setattr(simulated_failures, "MOST_FAILURES", 80)
    parts = simulate_wall_seconds(*arguments, np.random.default_rng(1))
    assert parts.mean() == pytest.approx(whole.mean(), rel=0.01)
    assert parts.std() == pytest.approx(whole.std(), rel=0.1)


def test_without_failures_nothing_is_random() -> None:
    work = np.array([1000.0, 90.0])
    wall = simulate_wall_seconds(work, 100.0, 5.0, Failures(), 1000, np.random.default_rng(0))
    assert wall == pytest.approx([1050, 95])


def test_the_same_seed_gives_the_same_runs() -> None:
    one, same, other = (simulated_goodput(300, 20, Failures(30 * DAY, 60), 1000, seed=seed) for seed in (1, 1, 2))
    assert one == same != other


# ---------------------------------------------------------------- the best interval


@QUICK
@given(st.floats(1e-3, 3), st.floats(0, 10), st.integers(1, 10**5))
def test_the_best_interval_is_where_the_slope_is_zero(checkpoint: float, restart: float, hosts: int) -> None:
    """Differentiating the closed form: t/M = 1 - exp(-(t + C)/M), whatever the restart. Times in units of M."""
    best = best_checkpoint_interval(checkpoint, Failures(1.0 * hosts, restart), hosts)
    assert best == pytest.approx(1 - math.exp(-(best + checkpoint)), rel=1e-5)


@pytest.mark.parametrize("hosts", [1, 100, 1000])
def test_the_best_interval_is_youngs_where_checkpoints_are_cheap_and_dalys_beyond(hosts: int) -> None:
    failures = Failures(30 * DAY, 300)
    mean = failures.mean_seconds_of(hosts)
    best = best_checkpoint_interval(20, failures, hosts)
    assert best == pytest.approx(dalys_interval(20, mean), rel=1e-4)
    assert best == pytest.approx(youngs_interval(20, mean), rel=math.sqrt(20 / mean))


def test_young_and_daly_as_published() -> None:
    assert youngs_interval(20, 2592) == pytest.approx(math.sqrt(2 * 20 * 2592))
    series = 1 + math.sqrt(20 / 5184) / 3 + 20 / 5184 / 9
    assert dalys_interval(20, 2592) == pytest.approx(math.sqrt(2 * 20 * 2592) * series - 20)
    assert dalys_interval(500, 250) == dalys_interval(501, 250) == 250


def test_the_simulated_goodput_is_highest_at_the_best_interval() -> None:
    failures = Failures(30 * DAY, 300)
    best = best_checkpoint_interval(20, failures, 1000)
    at_best, shorter, longer = (
        simulated_goodput(best * factor, 20, failures, 1000, intervals=round(60 / factor)).goodput
        for factor in (1, 1 / 3, 3)
    )
    assert at_best > shorter
    assert at_best > longer


def test_limits_of_the_best_interval() -> None:
    assert best_checkpoint_interval(20, Failures(), 1000) == math.inf
    assert best_checkpoint_interval(0, Failures(), 1000) == math.inf
    assert best_checkpoint_interval(0, Failures(DAY), 1000) == 0


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("mean", "restart", "message"),
    [
        (0, 0, "the mean time between failures of a host must be above 0 (found: 0 s); write 30d, say"),
        (math.nan, 0, "the mean time between failures of a host must be above 0 (found: nan s); write 30d, say"),
        (DAY, -1, "a restart must take 0 seconds or more (found: -1 s)"),
        (DAY, math.inf, "a restart must take 0 seconds or more (found: inf s)"),
    ],
)
def test_impossible_failures_are_refused(mean: float, restart: float, message: str) -> None:
    with pytest.raises(BadInput) as refusal:
        Failures(mean, restart)
    assert str(refusal.value) == message


@pytest.mark.parametrize(
    ("interval", "checkpoint", "message"),
    [
        (0, 1, "the time between checkpoints must be above 0 (found: 0 s)"),
        (math.inf, 1, "the time between checkpoints must be above 0 (found: inf s)"),
        (1, -1, "a checkpoint must take 0 seconds or more (found: -1 s)"),
    ],
)
def test_impossible_checkpoints_are_refused(interval: float, checkpoint: float, message: str) -> None:
    for function in (goodput, simulated_goodput):
        with pytest.raises(BadInput) as refusal:
            function(interval, checkpoint, Failures(DAY), 1)
        assert str(refusal.value) == message
    if checkpoint < 0:
        with pytest.raises(BadInput, match="a checkpoint must take"):
            best_checkpoint_interval(checkpoint, Failures(DAY), 1)


def test_a_run_that_would_hardly_train_is_refused() -> None:
    with pytest.raises(BadInput) as refusal:
        simulated_goodput(20, 20, Failures(DAY, 600), 1000)
    assert str(refusal.value) == (
        "1,000 hosts fail every 86.4 s on average, too often for restarts of 600 s and checkpoints of 20 s: "
        "less than 1 % of the time would train; use fewer hosts, or make these quicker"
    )
