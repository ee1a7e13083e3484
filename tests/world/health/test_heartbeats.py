"""The board of heartbeats: a common step is agreed on, and shares of the dead are given out once."""

from __future__ import annotations

from manyhands.world.health.heartbeats import FINISHED, PHASE, PHASE_NUMBERS, STEP, Board
from manyhands.world.launch.processes import LaunchedProcess, launch


def board(*rows: tuple[str, int]) -> Board:
    """A board whose ranks are in (phase, step)."""
    made = Board(len(rows))
    for rank, (phase, step) in enumerate(rows):
        made.row(rank)[PHASE], made.row(rank)[STEP] = PHASE_NUMBERS[phase], step
    return made


def test_the_first_step_after_which_all_can_still_pause() -> None:
    made = board(("wait", 5), ("wait", 7), ("wait", 6))
    for rank, done in enumerate((5, 7, 6)):
        made.finish(rank, done)
    with made.locked():
        assert made.first_common(0, 5) == 8, "rank 1 is past step 7 already"
        made.finish(0, 9)
        assert made.first_common(0, 9) == 9, "nobody has come so far"


def test_asynchronous_ranks_all_pause_after_the_same_step() -> None:
    """The race itself: ranks run ahead freely while one of them picks the step."""

    def body(process: LaunchedProcess) -> int:
        for step in range(1, 100_000):
            with process.board.locked():
                process.board.finish(process.index, step)
                if process.index == 0 and step == 50:
                    process.board.checkpoint_after = process.board.first_common(0, step)
            if process.board.checkpoint_after == step:
                return step
        return -1

    for _ in range(3):
        steps = launch(body, 3)
        assert len(set(steps)) == 1
        assert steps[0] >= 50


def test_the_share_of_a_dead_rank_is_given_out_once() -> None:
    made = board(("wait", 9), ("update", 6), ("forward", 7))
    made.row(1)[FINISHED], made.row(2)[FINISHED] = 5, 6
    made.bury(1)
    made.bury(2)
    assert made.claim(upto=8, most=3) == [(1, 7), (1, 8), (2, 7)], "step 6 of rank 1 may be in the weights: given up"
    assert made.claim(upto=8, most=9) == [(2, 8)]
    assert made.claim(upto=8, most=9) == []
    assert made.leader == 0
