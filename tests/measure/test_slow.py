"""The slow rank: named when the others wait for it, not when ranks differ by chance or hold different layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from manyhands.measure.run import PHASES
from manyhands.measure.slow import slow_rank

STEPS = 100
MS = 1e6 * STEPS  # nanoseconds of a millisecond a step


def measured(*ranks: dict[str, float], stages: bool = False) -> tuple[list[dict[str, Any]], np.ndarray]:
    """What ranks measured: milliseconds a step in some phases, and how `late` they came."""
    items = [
        {"rank": number, "late": rank.get("late", 0.0) * MS, "repeats": stages and number > 0}
        for number, rank in enumerate(ranks)
    ]
    return items, np.array([[rank.get(phase, 0.0) * MS for phase in PHASES] for rank in ranks])


FAST = {"load": 1.0, "forward": 4.0, "backward": 6.0, "wait": 9.0}
SLOW = {"load": 1.0, "forward": 4.0, "backward": 15.0}


@pytest.mark.parametrize("place", [0, 1, 2])
def test_by_its_work_whatever_its_number(place: int) -> None:
    ranks = [FAST, FAST, FAST]
    ranks[place] = SLOW
    assert slow_rank(*measured(*ranks), STEPS) == {"rank": place, "phase": "backward", "behind_ms": pytest.approx(9.0)}


def test_by_its_arrivals_where_ranks_meet() -> None:
    """One tenth of a step would be too little to tell from work alone."""
    ranks = [{"forward": 9.0, "wait": 1.0}, {"forward": 9.9, "late": 1.0, "wait": 0.1}]
    assert slow_rank(*measured(*ranks), STEPS) == {"rank": 1, "phase": "forward", "behind_ms": pytest.approx(1.0)}
    ranks[1]["late"], ranks[0]["late"] = 0.5, 0.4  # they take turns in coming last
    assert slow_rank(*measured(*ranks), STEPS) is None


def test_a_rank_nobody_waits_for_is_not_named() -> None:
    ranks = [{"forward": 4.0, "other": 6.0}, {"forward": 10.0}]
    assert slow_rank(*measured(*ranks), STEPS) is None


def test_stages_differ_by_nature() -> None:
    uneven = [{"forward": 6.0, "wait": 4.0}, {"forward": 9.0, "wait": 1.0, "late": 3.0}]
    assert slow_rank(*measured(*uneven, stages=True), STEPS) is None
    assert slow_rank(*measured(*uneven), STEPS) is not None
    far = [{"forward": 1.0, "wait": 9.0}, {"forward": 9.5, "wait": 0.5}]
    assert slow_rank(*measured(*far, stages=True), STEPS) == {"rank": 1, "phase": "forward", "behind_ms": 8.5}


def test_one_rank_or_no_time_is_nobody() -> None:
    assert slow_rank(*measured(SLOW), STEPS) is None
    assert slow_rank(*measured({}, {}), STEPS) is None
