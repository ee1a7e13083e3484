"""Losses of steps: what ranks note, put together, in few bytes."""

from __future__ import annotations

import math

import pytest

from manyhands.record import step_losses
from manyhands.record.step_losses import StepLosses, as_recorded, together
from manyhands.record.thinned import thinned


def noted(*losses: tuple[int, float, int, float], first: int = 0) -> StepLosses:
    found = StepLosses(first)
    for loss in losses:
        found.note(*loss)
    return found


def recorded(found: StepLosses, since: int = 0) -> list[float | None]:
    return as_recorded(found.means(since))


def test_a_step_is_the_mean_over_the_units_of_all_ranks() -> None:
    one, two = noted((0, 1.0, 3, 3.0), (1, 5.0, 1, 1.0)), noted((0, 2.0, 1, 1.0))
    found = together([one, two], 0, 3)
    assert recorded(found) == [1.25, 5.0, None]
    assert [type(loss) for loss in recorded(found)[:2]] == [float, float], "numpy's own take 100 times as long to send"
    assert found.samples == 5


def test_a_share_of_another_rank_counts_for_its_own_step() -> None:
    """A rank that is done early makes shares of steps that lie behind it, and may skip steps of its own."""
    found = together([noted((2, 4.0, 1, 1.0), (0, 1.0, 1, 1.0), (2, 8.0, 3, 3.0))], 0, 3)
    assert recorded(found) == [1.0, None, 7.0]


def test_what_is_all_padding_has_no_loss_but_samples() -> None:
    found = together([noted((0, math.nan, 2, 0.0))], 0, 1)
    assert (recorded(found), found.samples) == ([None], 2)


def test_what_comes_after_a_step_was_handed_over_is_left_out() -> None:
    late = noted((3, 9.0, 1, 1.0), (4, 1.0, 1, 1.0), first=4)
    assert (late.samples, list(late.sums)) == (1, [1.0])


def test_ranks_that_noted_nothing_leave_steps_unknown() -> None:
    assert recorded(together([], 3, 6)) == [None] * 3
    assert recorded(together([noted((7, 1.0, 1, 1.0), first=3)], 3, 6)) == [None] * 3, "no more than there were"
    assert recorded(together([StepLosses(3)], 3, 3)) == []


@pytest.fixture
def eight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_losses, "MOST", 8)


def counted(first: int, upto: int) -> StepLosses:
    """The loss of each step is its number, with as many units as that and one more."""
    return noted(*((step, float(step), 1, step + 1.0) for step in range(first, upto)), first=first)


def mean_of(steps: range) -> float:
    return sum(step * (step + 1.0) for step in steps) / sum(step + 1.0 for step in steps)


def test_very_many_are_kept_as_means_of_several(eight: None) -> None:
    """A million steps made a record of 18 MB, and a rank grew by 40 bytes with every step."""
    found = counted(0, 8)
    assert (found.each, recorded(found)) == (1, [float(step) for step in range(8)])
    found = counted(0, 21)
    assert (found.each, found.samples) == (4, 21)
    assert recorded(found) == pytest.approx([mean_of(range(at, min(at + 4, 21))) for at in range(0, 21, 4)])
    assert len(found.sums) == len(found.units) == 6
    assert recorded(noted((1000, 5.0, 1, 1.0)))[:-1] == [None] * 7


@pytest.mark.parametrize("cut", range(1, 21))
def test_what_is_handed_over_in_parts_is_what_was_noted_at_once(eight: None, cut: int) -> None:
    """Ranks hand over at the end of every epoch, which may lie in the middle of what is kept as one."""
    whole, parts = counted(0, 21), StepLosses()
    parts.add(together([counted(0, cut)], 0, cut), cut)
    parts.add(together([counted(cut, 21)], cut, 21), 21)
    assert (parts.each, parts.samples) == (whole.each, 21)
    assert recorded(parts) == pytest.approx(recorded(whole))
    assert recorded(parts, since=cut) == recorded(parts)[cut // 4 :]


def test_ranks_may_keep_means_of_more_and_of_fewer(eight: None) -> None:
    """One of them made shares of others, far ahead."""
    found = together([counted(0, 7), counted(0, 21)], 0, 21)
    assert (found.each, found.samples) == (4, 28)
    assert recorded(found)[2:] == pytest.approx(recorded(counted(0, 21))[2:])


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
