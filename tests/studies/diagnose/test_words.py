"""The verdict in words."""

from __future__ import annotations

import pytest

from manyhands.strategies import make_strategy
from manyhands.studies.diagnose.advice import Advice
from manyhands.studies.diagnose.job import Diagnosed
from manyhands.studies.diagnose.judge import judge
from manyhands.studies.diagnose.whole import Parts
from manyhands.studies.diagnose.words import verdict
from manyhands.studies.intervals import Interval
from manyhands.training.settings import FitSettings
from tests.conftest import make_task
from tests.studies.diagnose.test_judge import READING, evidence, gain, slow


@pytest.fixture(scope="module")
def job() -> Diagnosed:
    return Diagnosed.of(make_task(), make_strategy("ddp", 2), FitSettings())


def test_what_is_to_blame_and_what_is_not(job: Diagnosed) -> None:
    found = evidence(phases_ms=READING, gains={"loading": gain(5.0)})
    workers = Advice("4 loader workers", Interval(2.7, 2.5, 2.9), "manyhands ...", None, None, None)
    assert verdict(job, found, judge(found), [workers]) == (
        "Reading the data holds this job back: it costs 7.0 ms per step (a step takes 10.0 ms); without it the job would be "
        "3.3x faster. ddp is not the cause: its ranks talk and wait for 0% of the step. What helps most is 4 loader workers: "
        "2.7x (2.5 to 2.9)."
    )


def test_a_slow_rank(job: Diagnosed) -> None:
    found = evidence(slow=slow(1, 4.0))
    assert verdict(job, found, judge(found), []).startswith(
        "Rank 1 holds the others back: in `forward` it is 4.0 ms per step behind (a step takes 10.0 ms)."
    )


def test_nothing_to_gain(job: Diagnosed) -> None:
    found = evidence()
    assert verdict(job, found, judge(found), []) == (
        "No bottleneck was found: 90% of the step is forward and backward pass. Nothing to gain: no change that was tried helps."
    )
    short = evidence(parts=Parts(5.0, 0.0, 0.4, 0.1, 0.0, 0.0))
    assert "its steps are 0.4 s; starting takes 5.0 s, as it does for any job" in verdict(job, short, judge(short), [])


def test_others_on_the_machine(job: Diagnosed) -> None:
    found = evidence(others=1.04)
    assert verdict(job, found, judge(found), []) == (
        "No verdict: other processes use 1.0 of the 2 cores, which changes every figure. Try again when the machine is quiet, "
        "or use --even-if-busy."
    )
