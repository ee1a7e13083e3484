"""Losses of steps: what ranks note, put together, in few bytes."""

from __future__ import annotations

import math

from manyhands.record.step_losses import MOST_RECORDED, StepLosses, Together, as_recorded, in_record
from manyhands.record.thinned import thinned


def noted(*losses: tuple[int, float, int, float], first: int = 0) -> StepLosses:
    found = StepLosses(first)
    for loss in losses:
        found.note(*loss)
    return found


def test_a_step_is_the_mean_over_the_units_of_all_ranks() -> None:
    one, two = noted((0, 1.0, 3, 3.0), (1, 5.0, 1, 1.0)), noted((0, 2.0, 1, 1.0))
    found = Together.of([one, two], 3)
    assert as_recorded(found.means()) == [1.25, 5.0, None]
    assert found.samples == 5


def test_a_share_of_another_rank_counts_for_its_own_step() -> None:
    """A rank that is done early makes shares of steps that lie behind it, and may skip steps of its own."""
    found = Together.of([noted((2, 4.0, 1, 1.0), (0, 1.0, 1, 1.0), (2, 8.0, 3, 3.0))], 3)
    assert as_recorded(found.means()) == [1.0, None, 7.0]


def test_what_is_all_padding_has_no_loss_but_samples() -> None:
    found = Together.of([noted((0, math.nan, 2, 0.0))], 1)
    assert (as_recorded(found.means()), found.samples) == ([None], 2)


def test_what_comes_after_a_step_was_handed_over_is_left_out() -> None:
    late = noted((3, 9.0, 1, 1.0), (4, 1.0, 1, 1.0), first=4)
    assert (late.samples, list(late.sums)) == (1, [1.0])


def test_a_record_keeps_every_loss_or_means_of_several() -> None:
    """A million steps made a record of 18 MB, and no number of steps was too many."""
    assert in_record([1.0, math.nan, 3.0]) == (1, [1.0, None, 3.0])
    few = [float(step) for step in range(MOST_RECORDED)]
    assert in_record(few) == (1, few)
    many = [*few, *few, math.nan, 7.0]
    each, losses = in_record(many)
    assert (each, len(losses)) == (3, 66_668)
    assert losses[:2] == [1.0, 4.0]
    assert losses[-1] == 7.0  # the last window has one step that is known
    assert in_record([math.nan] * (MOST_RECORDED + 1))[1] == [None] * 50_001


def test_a_step_takes_sixteen_bytes() -> None:
    """Four numbers in a tuple took 250: a rank of a million steps held a quarter of a gigabyte for its losses."""
    found = StepLosses()
    for step in range(1000):
        found.note(step, 1.0, 4, 4.0)
    assert sum(len(numbers) * numbers.itemsize for numbers in (found.sums, found.units)) == 16_000


def test_a_thinned_list_is_evenly_spread_and_ends_with_the_last() -> None:
    assert list(thinned(range(10), 4)) == [0, 3, 6, 9]
    assert list(thinned(range(11), 4)) == [1, 4, 7, 10]
    assert list(thinned(range(4), 4)) == [0, 1, 2, 3]
    assert list(thinned([], 4)) == []
    assert all(len(thinned(range(size), 100)) <= 100 for size in range(1, 1000))
