"""How long steps took: all of them, or of very many every second, fourth, ... one, the same for every rank."""

from __future__ import annotations

import json
import sys

import pytest

from manyhands.record import step_times
from manyhands.record.step_times import MOST, StepTimes


def noted(count: int, first: int = 0, more: int = 0) -> StepTimes:
    """Of steps which took as many nanoseconds as their number says."""
    found = StepTimes(first)
    for step in range(first, first + count):
        found.note(step + more)
    return found


@pytest.fixture
def eight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_times, "MOST", 8)


def test_all_are_kept_until_there_are_too_many(eight: None) -> None:
    assert list(noted(8).kept) == list(range(8))
    found = noted(9)
    assert (found.each, list(found.kept), found.steps) == (2, [0, 2, 4, 6, 8], 9)
    found = noted(100)
    assert (found.each, list(found.kept), found.steps) == (16, [0, 16, 32, 48, 64, 80, 96], 100)


def test_a_million_steps_take_less_than_a_megabyte() -> None:
    """A rank grew by 40 bytes with every step, without an end."""
    found = noted(1_000_000)
    assert found.each == 16
    assert len(found.kept) == 62_500 <= MOST
    assert sys.getsizeof(found.kept) < 1_000_000


def test_several_ranks_keep_the_same_steps(eight: None) -> None:
    found = StepTimes.mean([noted(20), noted(20, more=10), noted(13, more=20)])
    assert (found.each, list(found.kept), found.steps) == (4, [10, 14, 18, 22], 13)
    assert list(noted(3).kept) == [0, 1, 2], "what was put together is as it was"


@pytest.mark.parametrize("cut", range(1, 30))
def test_what_is_handed_over_in_parts_is_what_was_kept_at_once(eight: None, cut: int) -> None:
    """Checkpoints take the times since the one before."""
    whole, parts = noted(30), StepTimes()
    parts.extend(noted(cut).since(0))
    parts.extend(noted(30).since(cut))
    assert (parts.each, list(parts.kept), parts.steps) == (whole.each, list(whole.kept), 30)
    later = noted(30 - cut, first=cut)
    parts = noted(cut)
    parts.extend(later)
    assert parts.kept == whole.kept[: len(parts.kept)] or parts.each > whole.each


def test_they_go_through_a_file(eight: None) -> None:
    found = noted(20)
    assert StepTimes.of_plain(json.loads(json.dumps(found.plain()))) == found
