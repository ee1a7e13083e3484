"""A step carried to many hosts: against closed forms where there are some, and quick enough for a thousand hosts."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.errors import BadInput
from manyhands.studies.plan.at_scale import ScaleForecast, at_scale
from manyhands.studies.plan.collectives import all_reduce, exchange_with_servers
from manyhands.studies.plan.failures import Failures, best_checkpoint_interval, goodput
from manyhands.studies.plan.link import Link
from manyhands.studies.plan.stragglers import Stragglers, slow_down

DAY = 86400.0
LINK = Link.parse("100gbit,10us")


def forecast(**changes: Any) -> ScaleForecast:
    """A thousand hosts that never fail and are equally fast, unless changed."""
    plain: dict[str, Any] = {
        "step_seconds": 0.2,
        "ranks_per_host": 8,
        "hosts": 1000,
        "link": LINK,
        "bytes_per_rank_over_link": 1e8 / 8,
        "synchronous": True,
        "stragglers": Stragglers(),
        "failures": Failures(),
        "checkpoint_seconds": 20.0,
        "samples_per_step": 8000 * 32,
        "total_samples": 1e11,
    }
    return at_scale(**plain | changes)


@settings(derandomize=True, deadline=None, max_examples=15)
@given(st.integers(1, 10**5), st.integers(1, 16), st.floats(0, 1e9), st.booleans())
def test_without_stragglers_and_failures_it_is_arithmetic(
    hosts: int, ranks_per_host: int, size: float, synchronous: bool
) -> None:
    found = forecast(hosts=hosts, ranks_per_host=ranks_per_host, bytes_per_rank_over_link=size, synchronous=synchronous)
    exchange = all_reduce if synchronous else exchange_with_servers
    step = 0.2 + exchange(hosts, ranks_per_host * size, LINK)
    seconds = math.ceil(1e11 / 256_000) * step
    for estimate, value in [
        (found.step_seconds, step),
        (found.samples_per_second, 256_000 / step),
        (found.wall_seconds, seconds + 20),
    ]:
        assert (estimate.expected, estimate.low, estimate.high) == pytest.approx((value, value, value))
    assert found.goodput == pytest.approx(1 - 20 / (seconds + 20))
    assert found.checkpoint_interval_seconds == pytest.approx(seconds)
    assert (found.failures, found.ranks) == (0, hosts * ranks_per_host)


def test_one_host_needs_no_network() -> None:
    assert forecast(hosts=1, synchronous=True).communication_seconds == 0
    assert forecast(hosts=1, synchronous=False).communication_seconds == 0


def test_communication_hides_behind_the_overlap() -> None:
    shown = all_reduce(1000, 1e8, LINK)
    assert forecast().communication_seconds == pytest.approx(shown)
    assert forecast(overlap_seconds=0.01).step_seconds.expected == pytest.approx(0.2 + shown - 0.01)
    assert forecast(overlap_seconds=1.0).step_seconds.expected == pytest.approx(0.2)


def test_stragglers_slow_the_step_but_not_the_network() -> None:
    stragglers = Stragglers(0.05)
    found = forecast(stragglers=stragglers)
    slower = slow_down(stragglers, 1000, 8, synchronous=True, seed=7)
    network = all_reduce(1000, 1e8, LINK)
    for name in ("expected", "low", "high"):
        assert getattr(found.step_seconds, name) == pytest.approx(0.2 * getattr(slower, name) + network, rel=0.005)
    assert found.samples_per_second.expected == pytest.approx(256_000 / found.step_seconds.expected, rel=1e-4)
    # Luck averages out over 390,625 steps: whole runs differ far less than steps do.
    assert found.wall_seconds.high / found.wall_seconds.low < 1.001 < found.step_seconds.high / found.step_seconds.low


def test_few_steps_average_out_less() -> None:
    few, many = (forecast(stragglers=Stragglers(0.2), total_samples=count * 256_000) for count in (4, 400))
    few_width, many_width = (found.samples_per_second.high / found.samples_per_second.low - 1 for found in (few, many))
    assert few_width == pytest.approx(10 * many_width, rel=0.15)


def test_failures_stretch_the_wall_time_by_the_goodput() -> None:
    failures = Failures(30 * DAY, 300)
    calm, found = forecast(), forecast(failures=failures)
    interval = found.checkpoint_interval_seconds
    assert interval == pytest.approx(best_checkpoint_interval(20, failures, 1000), rel=0.01)
    assert found.goodput == goodput(interval, 20, failures, 1000)
    work = 390_625 * calm.step_seconds.expected
    spread = (found.wall_seconds.high - found.wall_seconds.low) / 2.5
    assert abs(found.wall_seconds.expected - work / found.goodput) < 4 * spread / math.sqrt(1000)
    assert found.wall_seconds.low < found.wall_seconds.expected < found.wall_seconds.high
    assert found.failures == pytest.approx(found.wall_seconds.expected / (30 * DAY / 1000))
    assert found.step_seconds == calm.step_seconds


def test_free_checkpoints_are_written_at_every_step() -> None:
    found = forecast(failures=Failures(30 * DAY, 300), checkpoint_seconds=0.0, total_samples=256e6)
    assert found.checkpoint_interval_seconds == pytest.approx(found.step_seconds.expected, rel=0.25)
    assert found.goodput == pytest.approx(math.exp(-300 / 2592), rel=1e-3)


def test_a_short_run_writes_one_checkpoint_at_its_end() -> None:
    found = forecast(failures=Failures(3000 * DAY, 300), total_samples=256_000 * 100)
    assert found.checkpoint_interval_seconds == pytest.approx(100 * found.step_seconds.expected)


def test_a_thousand_hosts_take_seconds() -> None:
    began = time.perf_counter()
    found = forecast(stragglers=Stragglers(0.05, 0.01, 1.5), failures=Failures(30 * DAY, 300))
    assert time.perf_counter() - began < 10
    assert 0 < found.goodput < 1
    assert found.ranks == 8000


def test_very_long_runs_take_no_longer() -> None:
    began = time.perf_counter()
    found = forecast(stragglers=Stragglers(0.05), failures=Failures(30 * DAY, 300), total_samples=1e15)
    assert time.perf_counter() - began < 10
    work = 1e15 / found.samples_per_second.expected
    assert found.wall_seconds.expected == pytest.approx(work / found.goodput, rel=0.01)
    assert found.wall_seconds.high / found.wall_seconds.low < 1.01


def test_the_same_seed_gives_the_same_forecast() -> None:
    one, same, other = (
        forecast(stragglers=Stragglers(0.05), failures=Failures(30 * DAY, 300), seed=seed) for seed in (1, 1, 2)
    )
    assert one == same != other


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hosts": 0}, "hosts must be 1 or more (found: 0)"),
        ({"ranks_per_host": 0}, "ranks per host must be 1 or more (found: 0)"),
        ({"samples_per_step": 0}, "samples per step must be 1 or more (found: 0)"),
        ({"total_samples": math.inf}, "samples in total must be 1 or more (found: inf)"),
        ({"step_seconds": 0.0}, "a step must take more than 0 seconds (found: 0 s)"),
        ({"bytes_per_rank_over_link": -1.0}, "bytes over the link must be 0 or more (found: -1)"),
        ({"overlap_seconds": -1.0}, "seconds of overlap must be 0 or more (found: -1)"),
        ({"checkpoint_seconds": -1.0}, "a checkpoint must take 0 seconds or more (found: -1 s)"),
        (
            {"failures": Failures(DAY / 10, 600)},
            "1,000 hosts fail every 8.64 s on average, too often for restarts of 600 s and checkpoints of 20 s: "
            "less than 1 % of the time would train; use fewer hosts, or make these quicker",
        ),
    ],
)
def test_what_cannot_be_forecast_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput) as refusal:
        forecast(**changes)
    assert str(refusal.value) == message


def test_a_job_shorter_than_its_last_checkpoint_is_not_called_hopeless() -> None:
    """A job of one step was refused because "less than 1 % of the time would train": the rest was its checkpoint."""
    failing = Failures(30 * 86400, 60)
    found = at_scale(0.005, 2, 1000, Link.parse("100gbit,10us"), 2e5, True, Stragglers(), failing, 10.0, 32_000, 600)
    assert found.wall_seconds.low == pytest.approx(10, rel=0.05)
