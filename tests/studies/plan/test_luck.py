"""Luck: the ups and downs of measured steps, dealt out to simulated ranks."""

from __future__ import annotations

import pytest

from manyhands.strategies.timeline import Act, Meet, Work
from manyhands.studies.plan.events import run
from manyhands.studies.plan.luck import drawn

MEASURED = [0.9] * 90 + [1.9] * 10  # one step in ten takes twice as long
STEPS = 16


def step_seconds(ranks: int, lockstep: bool) -> float:
    def timeline(process: int, step: int) -> list[Act]:
        return [Work("forward", 1.0), *([Meet("end", ranks, 0.0)] if lockstep else [])]

    luck = drawn(MEASURED, STEPS)
    return run(lambda p, s: iter(timeline(p, s)), [0] * ranks, 64, steps=STEPS + 8, warm=8, luck=luck).step_seconds


def test_over_all_steps_every_rank_has_the_same_luck() -> None:
    luck = drawn(MEASURED, STEPS)
    for process in range(4):
        assert sum(luck(process, step) for step in range(STEPS)) == pytest.approx(STEPS)
    assert [luck(0, step) for step in range(STEPS)] != [luck(1, step) for step in range(STEPS)]
    assert luck(3, 5) == drawn(MEASURED, STEPS)(3, 5)


def test_ranks_that_wait_for_each_other_are_the_slower_the_more_they_are() -> None:
    """Forecasts of lockstep strategies took every rank's step to be equally long, and were too fast on many ranks."""
    two, four, sixteen = (step_seconds(ranks, lockstep=True) for ranks in (2, 4, 16))
    assert 1.0 < two < four < sixteen < 1.9


def test_ranks_that_do_not_wait_lose_nothing() -> None:
    assert step_seconds(16, lockstep=False) == pytest.approx(1.0)


def test_too_few_measured_steps_tell_nothing() -> None:
    assert drawn([1.0, 2.0], STEPS)(0, 0) == 1.0
