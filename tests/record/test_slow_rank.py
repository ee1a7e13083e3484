"""The slow rank: named when it is behind for long by itself, not by chance, for want of a core, or by its layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from manyhands.record.clock import Clock
from manyhands.record.run import PHASES, Run
from manyhands.record.running_totals import MOST, RunningTotals
from manyhands.record.slow_rank import agreed, told_from_noise
from manyhands.record.slow_rank import slow_rank as finding

STEPS = 96
COLUMNS = (*PHASES, "late", "made", "stolen")
Step = dict[str, float]  # milliseconds in some phases, how `late` it came, what was `stolen`


def measured(*processes: Step | list[Step], **more: Any) -> list[dict[str, Any]]:
    """Figures of processes that made equal steps, or one after the other those of a list."""
    found = []
    for number, process in enumerate(processes):
        steps = process if isinstance(process, list) else [process] * STEPS
        rows = [[1e6 * step.get(name, 0.0) if name != "made" else 1.0 for name in COLUMNS] for step in steps]
        marks = np.cumsum([[0.0] * len(COLUMNS), *rows], axis=0).tolist()
        found.append({"rank": number, "lockstep": True, "repeats": False, "marks": marks, **more})
    return found


def slow_rank(figures: list[dict[str, Any]], ranks: int) -> dict[str, Any] | None:
    return finding(figures, ranks).named


FAST = {"load": 1.0, "forward": 4.0, "backward": 6.0, "wait": 9.0}
SLOW = {"load": 1.0, "forward": 4.0, "backward": 15.0}


@pytest.mark.parametrize("place", [0, 1, 2])
def test_by_its_work_whatever_its_number(place: int) -> None:
    ranks = [FAST, FAST, FAST]
    ranks[place] = SLOW
    assert slow_rank(measured(*ranks), 3) == {"rank": place, "phase": "backward", "behind_ms": pytest.approx(9.0)}


def test_by_its_arrivals_where_ranks_meet() -> None:
    """One tenth of a step would be too little to tell from work alone."""
    ranks = [{"forward": 9.0, "wait": 1.0}, {"forward": 9.9, "late": 1.0, "wait": 0.1}]
    assert slow_rank(measured(*ranks), 2) == {"rank": 1, "phase": "forward", "behind_ms": pytest.approx(1.0)}
    ranks[1]["late"], ranks[0]["late"] = 0.5, 0.4  # they take turns in coming last
    assert slow_rank(measured(*ranks), 2) is None


def test_a_rank_nobody_waits_for_is_not_named() -> None:
    ranks = [{"forward": 4.0, "other": 6.0}, {"forward": 10.0}]
    assert slow_rank(measured(*ranks), 2) is None


def test_stages_differ_by_nature() -> None:
    uneven = [{"forward": 6.0, "wait": 4.0}, {"forward": 9.0, "wait": 1.0, "late": 3.0}]
    assert slow_rank(measured(*uneven, repeats=True), 2) is None
    assert slow_rank(measured(*uneven), 2) is not None
    far = [{"forward": 1.0, "wait": 9.0}, {"forward": 9.5, "wait": 0.5}]
    found = slow_rank(measured(*far, repeats=True), 2)
    assert found == {"rank": 1, "phase": "forward", "behind_ms": pytest.approx(8.5)}


def test_one_rank_or_no_time_is_nobody() -> None:
    assert slow_rank(measured(SLOW), 1) is None
    assert slow_rank(measured({}, {}), 2) is None


def test_slow_for_a_while_is_not_slow() -> None:
    """Ghosts: on a machine that others use, some rank was behind in most fits."""
    calm, held_up = [{"forward": 10.0}] * 60, [{"forward": 40.0}] * 36
    waiting = [{"forward": 10.0, "wait": 30.0}] * 36
    assert slow_rank(measured(calm + waiting, calm + held_up), 2) is None
    assert finding(measured(calm + waiting, calm + held_up), 2).suspect is not None, "a vote where fits are compared"
    assert slow_rank(measured(waiting + waiting, held_up + held_up), 2) is not None


def test_slow_by_turns_is_chance_and_slow_now_and_then_is_not() -> None:
    rng = np.random.default_rng(1)
    bursts = rng.exponential(8.0, (2, STEPS)) * (rng.random((2, STEPS)) < 0.3)
    met = bursts.max(axis=0)
    by_chance = [
        [{"forward": 5 + own, "wait": all_ - own} for own, all_ in zip(mine, met, strict=True)] for mine in bursts
    ]
    assert slow_rank(measured(*by_chance), 2) is None
    hiccups = [30.0 if number % 8 == 7 else 0.0 for number in range(STEPS)]
    now_and_then = [
        [{"forward": 5.0, "wait": extra} for extra in hiccups],
        [{"forward": 5.0 + extra} for extra in hiccups],
    ]
    found = slow_rank(measured(*now_and_then), 2)
    assert found == {"rank": 1, "phase": "forward", "behind_ms": pytest.approx(30 / 8)}


def test_a_rank_without_a_core_is_not_slow() -> None:
    robbed = [FAST, {**SLOW, "stolen": 9.0}]
    assert slow_rank(measured(*robbed), 2) is None
    both = [{**FAST, "stolen": 2.0}, {**SLOW, "stolen": 4.0}]
    found = slow_rank(measured(*both), 2)
    assert found is not None
    assert found["behind_ms"] == pytest.approx(7.0)


def test_ranks_that_do_not_keep_step_are_compared_by_the_share() -> None:
    """A slow rank under hogwild gives shares away: what it made in the same time, not its time, shows that it is slow."""
    fast, slow = [{"forward": 5.0}] * 128, [{"forward": 10.0}] * 64
    found = slow_rank(measured(fast, slow, lockstep=False), 2)
    assert found == {"rank": 1, "phase": "forward", "behind_ms": pytest.approx(5.0)}


def test_servers() -> None:
    """A server's update was booked as its ranks' wait, and no server was ever named."""
    rank = {"forward": 5.0, "update": 6.0}
    quick, slow = {"update": 1.0, "wait": 10.0}, {"update": 6.0, "wait": 5.0}
    found = slow_rank(measured(rank, rank, quick, slow), 2)
    assert found == {"rank": None, "server": 1, "phase": "update", "behind_ms": pytest.approx(5.0)}
    found = slow_rank(measured(rank, rank, slow), 2)  # alone: more than a quarter of the step is its update
    assert found == {"rank": None, "server": 0, "phase": "update", "behind_ms": pytest.approx(6.0)}
    rank = {"forward": 5.0, "update": 1.0}
    assert slow_rank(measured(rank, rank, quick), 2) is None
    assert slow_rank(measured(rank, rank, quick, quick), 2) is None


def test_fits_must_agree() -> None:
    one, other = {"rank": 1, "phase": "load", "behind_ms": 4.0}, {"rank": 0, "phase": "load", "behind_ms": 9.0}
    assert agreed([one, one, {**one, "behind_ms": 7.0}, None]) == one
    assert agreed([one, one, other, None]) is None
    assert agreed([one, {**one, "phase": "forward"}]) is None
    assert agreed([None, one, one, one]) == one
    assert agreed([one]) == one
    assert agreed([]) is None


def test_rows_of_a_comparison_must_show_it_in_every_fit_by_like_amounts() -> None:
    """On a loaded machine 7 of 9 comparisons named a rank that was behind by chance in three of four fits."""
    one, other = {"rank": 1, "phase": "load", "behind_ms": 4.0}, {"rank": 0, "phase": "load", "behind_ms": 9.0}
    assert told_from_noise([one, one, {**one, "behind_ms": 5.0}, {**one, "behind_ms": 3.0}]) == one
    assert told_from_noise([one, one, one, None]) is None
    assert told_from_noise([one, one, one, other]) is None
    assert told_from_noise([one, one, one, {**one, "behind_ms": 1.0}]) is None
    assert told_from_noise([*[one] * 9, None]) == one
    assert told_from_noise([*[one] * 6, None]) is None
    assert told_from_noise([None, None]) is None
    assert told_from_noise([]) is None


def test_marks_are_few_and_even_however_long_the_fit() -> None:
    clock = Clock()
    marks = RunningTotals(clock)
    clock.start()
    marks.begin(0)
    for share in range(1, 1001):
        clock.begin_step()
        clock.end_step()
        marks.note(share)
    clock.stop()
    marks.end(1000)
    made = [mark[COLUMNS.index("made")] for mark in marks.kept]
    assert MOST // 2 < len(made) <= MOST + 1
    assert made[0] == 0
    assert made[-1] == 1000
    assert len(set(np.diff(made[:-1]).tolist())) == 1
    assert all(np.diff([mark[COLUMNS.index("stolen")] for mark in marks.kept]) >= 0)


@pytest.mark.parametrize("who", [{"rank": 1}, {"rank": None, "server": 0}])
def test_who_is_slow_is_still_known_when_the_record_is_read_again(who: dict[str, Any], tmp_path: Path) -> None:
    """A slow server used to be dropped, since it has no rank."""
    found = {**who, "phase": "update", "behind_ms": 2.5}
    Run("glyphs", "parameter_server", slow_rank=found).save(tmp_path)
    assert Run.load(tmp_path).slow_rank == found
