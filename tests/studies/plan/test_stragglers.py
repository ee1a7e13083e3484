"""Slow ranks: simulated slow-downs against exact expectations of the largest of n, and against ranks drawn one by one."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.errors import BadInput
from manyhands.studies.plan.estimate import Estimate
from manyhands.studies.plan.stragglers import STEPS, Stragglers, simulate_slow_downs, slow_down

NORMAL = NormalDist()


def exact_slow_down(stragglers: Stragglers, hosts: int, ranks_per_host: int) -> float:
    """The mean of the slowest rank: the integral of 1 - P(all hosts are done by x)."""
    sigma = math.sqrt(math.log1p(stragglers.spread**2))
    highest = stragglers.slow_factor * math.exp(sigma * 9)
    points = np.linspace(0, highest, 20_001)[1:]

    def done(times: np.ndarray) -> np.ndarray:
        return np.array([NORMAL.cdf((math.log(x) + sigma**2 / 2) / sigma) for x in times]) ** ranks_per_host

    share = stragglers.slow_share
    all_done = ((1 - share) * done(points) + share * done(points / stragglers.slow_factor)) ** hosts
    return float(np.sum(1 - all_done) * (points[1] - points[0]))


def standard_error(found: Estimate) -> float:
    return (found.high - found.low) / 2.5 / math.sqrt(STEPS)  # from the width of a bell curve's middle 80 %


@pytest.mark.parametrize("ranks", [1, 2, 16, 8000])
@pytest.mark.parametrize("spread", [0.05, 0.5])
def test_the_mean_of_the_slowest_is_the_exact_one(spread: float, ranks: int) -> None:
    found = slow_down(Stragglers(spread), ranks, 1, synchronous=True)
    assert abs(found.expected - exact_slow_down(Stragglers(spread), ranks, 1)) < 4 * standard_error(found)


def test_slow_hosts_are_in_the_exact_mean_too() -> None:
    stragglers = Stragglers(0.05, slow_share=0.02, slow_factor=1.3)
    found = slow_down(stragglers, 40, 8, synchronous=True)
    assert found.expected == pytest.approx(exact_slow_down(stragglers, 40, 8), rel=0.01)


@pytest.mark.parametrize(
    ("ranks", "mean"), [(2, 1 / math.sqrt(math.pi)), (3, 1.5 / math.sqrt(math.pi)), (10, 1.538753), (100, 2.507594)]
)
def test_a_small_spread_gives_the_largest_of_n_normals(ranks: int, mean: float) -> None:
    """A lognormal of a tiny spread is a normal; the means of the largest of n are those of the tables."""
    found = (slow_down(Stragglers(1e-5), ranks, 1, synchronous=True).expected - 1) / 1e-5
    assert found == pytest.approx(mean, abs=4 * 0.83 / math.sqrt(STEPS))


@pytest.mark.parametrize("ranks", [1, 10, 8000, 10**9])
def test_the_tail_gives_the_largest_of_n_exponentials(ranks: int) -> None:
    """-log P(later than x) of a rank's own time is exponential, and the largest of n exponentials has the mean 1 + 1/2 + ... + 1/n."""
    sigma = math.sqrt(math.log1p(0.1**2))
    (times, *_) = simulate_slow_downs(Stragglers(0.1), ranks, 1, True, np.random.default_rng(3))
    found = np.array([-math.log(NORMAL.cdf(-(math.log(x) + sigma**2 / 2) / sigma)) for x in times])
    harmonic = math.log(ranks) + 0.5772157 + 0.5 / ranks if ranks > 100 else sum(1 / n for n in range(1, ranks + 1))
    assert abs(found.mean() - harmonic) < 4 * found.std() / math.sqrt(STEPS)


def test_ranks_drawn_one_by_one_give_the_same_interval() -> None:
    sigma = math.sqrt(math.log1p(0.1**2))
    rng = np.random.default_rng(0)
    drawn = np.exp(rng.normal(-(sigma**2) / 2, sigma, (4000, 64)))
    for synchronous, steps in ((True, drawn.max(axis=1)), (False, drawn.mean(axis=1))):
        found = slow_down(Stragglers(0.1), 8, 8, synchronous)
        assert (found.low, found.high) == pytest.approx(np.quantile(steps, (0.1, 0.9)), rel=0.01)
        assert found.expected == pytest.approx(steps.mean(), rel=0.01)


@settings(derandomize=True, deadline=None, max_examples=10)
@given(st.integers(1, 10**6), st.integers(1, 64), st.booleans())
def test_without_spread_nothing_is_slower(hosts: int, ranks_per_host: int, synchronous: bool) -> None:
    found = slow_down(Stragglers(), hosts, ranks_per_host, synchronous)
    assert (found.expected, found.low, found.high) == pytest.approx((1, 1, 1))


@settings(derandomize=True, deadline=None, max_examples=10)
@given(st.floats(0, 1), st.integers(1, 2000), st.floats(1, 4), st.integers(0, 10**6))
def test_more_hosts_or_slower_ones_wait_longer(spread: float, hosts: int, factor: float, seed: int) -> None:
    few, many, slow = (
        slow_down(stragglers, count, 4, True, seed=seed).expected
        for stragglers, count in [
            (Stragglers(spread), hosts),
            (Stragglers(spread), 2 * hosts),
            (Stragglers(spread, 1.0, factor), hosts),
        ]
    )
    assert few <= many * (1 + 1e-9)
    assert slow == pytest.approx(few * factor, rel=0.2 * spread + 1e-9)


def test_one_slow_host_holds_everybody_up_unless_nobody_waits() -> None:
    """Of 1,000 hosts about 10 take three times as long: all of them do, or the speeds add up to 1 % x 2/3 less."""
    stragglers = Stragglers(slow_share=0.01, slow_factor=3)
    assert slow_down(stragglers, 1000, 8, synchronous=True).expected == pytest.approx(3, rel=1e-3)
    alone = slow_down(stragglers, 1000, 8, synchronous=False)
    assert alone.expected == pytest.approx(1 / (1 - 0.01 * 2 / 3), rel=1e-3)
    assert alone.low < alone.expected < alone.high


def test_slow_hosts_are_slow_for_a_whole_run() -> None:
    cases = simulate_slow_downs(Stragglers(slow_share=0.05, slow_factor=2), 10, 1, True, np.random.default_rng(0))
    assert set(np.unique(cases)) == {1.0, 2.0}
    assert not cases.std(axis=1).any()
    assert cases.mean() - 1 == pytest.approx(1 - 0.95**10, abs=0.06)


def test_the_same_seed_gives_the_same_estimate() -> None:
    one, same, other = (slow_down(Stragglers(0.1), 10, 8, True, seed=seed) for seed in (1, 1, 2))
    assert one == same != other


@pytest.mark.parametrize(
    ("spread", "share", "factor", "message"),
    [
        (-0.1, 0, 1, "the spread of step times must be 0 or more (found: -0.1); 0.05 means 5 %"),
        (math.nan, 0, 1, "the spread of step times must be 0 or more (found: nan); 0.05 means 5 %"),
        (0, 1.5, 1, "the share of slow hosts must be between 0 and 1 (found: 1.5)"),
        (0, 0.5, 0.5, "slow hosts must take at least 1 times as long (found: 0.5)"),
    ],
)
def test_impossible_stragglers_are_refused(spread: float, share: float, factor: float, message: str) -> None:
    with pytest.raises(BadInput) as refusal:
        Stragglers(spread, share, factor)
    assert str(refusal.value) == message
