"""Stalled ranks: never a hang, and the message says who stopped, where, and who waits."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

import manyhands as mh
from manyhands.errors import RankFailed
from manyhands.world.health.heartbeats import DONE, FIRST, LOST, PHASE, PHASE_NUMBERS, PID, SINCE, STEP, Board
from manyhands.world.health.stalls import AWAY_SECONDS, StallFinder, processor_seconds
from manyhands.world.launch.processes import LaunchedProcess, launch
from tests.breakable import BreakingLoss, signal_self, sleep_forever, toy
from tests.conftest import ends_soon

fit = partial(mh.fit, progress=False, threads=1)
STALL = AWAY_SECONDS + 0.5  # a machine that stands still for shorter is no stall, and for longer is known to have slept


def spin_forever() -> None:
    while True:
        pass


def board(*rows: tuple[str, int, float], ranks: int | None = None) -> Board:
    """A board whose ranks have been in (phase, step) for some seconds; their process is this one."""
    made = Board(len(rows), ranks=ranks)
    for rank, (phase, step, seconds) in enumerate(rows):
        row = made.row(rank)
        row[PHASE], row[STEP], row[PID] = PHASE_NUMBERS[phase], step, os.getpid()
        row[SINCE] = time.monotonic_ns() - int(seconds * 1e9)
    return made


def judged(made: Board, finder: StallFinder | None = None) -> RankFailed | None:
    return (finder or StallFinder(30.0))(made, now=time.monotonic() + 1.0)


def test_who_stopped_where_and_who_waits() -> None:
    failure = judged(board(("communication", 41, 30.9), ("forward", 41, 31.2), ("communication", 41, 31.0)))
    assert str(failure) == "rank 1 has been in forward of step 41 for 31 s; ranks 0 and 2 wait for it in communication"
    assert failure is not None
    assert (failure.kind, failure.rank, failure.step, failure.phase) == ("stalled", 1, 41, "forward")


@pytest.mark.parametrize("phase", ["load", "augment", "backward", "update", "other"])
def test_every_kind_of_work_can_stall(phase: str) -> None:
    failure = judged(board((phase, 3, 31.0), ("wait", 3, 30.5)))
    assert str(failure) == f"rank 0 has been in {phase} of step 3 for 31 s; rank 1 waits for it"


def test_servers_wait_for_their_ranks() -> None:
    failure = judged(board(("wait", 9, 40.0), ("forward", 9, 41.0), ("other", 9, 42.0), ranks=2))
    assert str(failure) == "rank 1 has been in forward of step 9 for 41 s; rank 0 and server 0 wait for it"


def test_when_all_wait_for_each_other_the_one_behind_is_named() -> None:
    failure = judged(board(("communication", 8, 40.0), ("communication", 7, 35.0)))
    assert failure is not None
    assert failure.rank == 1
    assert (
        "rank 1 has been in communication of step 7 for 35 s, and so have all others: they wait for each other"
        in str(failure)
    )


@pytest.mark.parametrize(
    "rows",
    [
        [("evaluation", 16, 200.0), ("wait", 16, 200.0)],  # a large test set
        [("start-up", -1, 100.0), ("start-up", -1, 100.0)],
        [("checkpoint", 16, 100.0), ("wait", 16, 100.0)],  # a slow disk
        [("forward", 5, 29.0), ("communication", 5, 29.0)],  # not yet
        [("communication", 5, 31.0), ("forward", 5, 2.0)],  # the others are at work
    ],
)
def test_what_is_slow_is_not_stuck(rows: list[tuple[str, int, float]]) -> None:
    assert judged(board(*rows)) is None


def in_a_first_step(step: int, used_each_tenth: float) -> RankFailed | None:
    """What is found within 1.5 s of a first step, looked at ten times a second, that uses so much of a processor."""
    spent, now = 0.0, time.monotonic()
    finder = StallFinder(0.4, used=lambda board, rank: spent)
    made = board(("forward", step, 0.0))
    made.row(0)[FIRST] = 1
    for _ in range(15):
        spent, now = spent + used_each_tenth, now + 0.1
        made.row(0)[SINCE] -= 100_000_000
        if failure := finder(made, now):
            return failure
    return None


@pytest.mark.parametrize("step", [1, 0, -1])
def test_a_slow_first_step_that_computes_is_not_stuck(step: int) -> None:
    """Steps made before the first one, to record it, were once judged as any other: a compiler was taken for a stall."""
    assert in_a_first_step(step, used_each_tenth=0.05) is None


def test_a_first_step_that_sleeps_is_stuck() -> None:
    assert in_a_first_step(1, used_each_tenth=0.001) is not None


def test_processor_time_grows_with_work() -> None:
    before, until = processor_seconds(os.getpid()), time.process_time() + 0.1
    while time.process_time() < until:
        sum(range(10_000))
    assert processor_seconds(os.getpid()) >= before + 0.05


def test_the_limit_follows_the_median_step() -> None:
    finder, now = StallFinder(), time.monotonic()
    assert finder.limit == 30.0
    for step, seconds in enumerate([1.0, 4.0, 4.0, 4.0, 60.0, 0.5], start=1):
        now += seconds
        assert finder(board(("forward", step, 0.0)), now) is None
    assert finder.limit == 80.0
    assert StallFinder(2.5).limit == 2.5


def test_ranks_that_ended_are_not_judged() -> None:
    made = board(("forward", 3, 99.0), ("forward", 3, 99.0))
    made.row(0)[DONE] = 1
    made.row(1)[LOST] = 4
    assert judged(made) is None


# ---------------------------------------------------------------- for real


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (sleep_forever, "rank 1 has been in forward of step 4 for N s; rank 0 waits for it in communication"),
        pytest.param(
            spin_forever,
            "rank 1 has been in forward of step 4 for N s; rank 0 waits for it in communication",
            marks=pytest.mark.soak,
        ),
        pytest.param(
            signal_self(signal.SIGSTOP),
            "rank 1 has been in forward of step 4 for N s (its process is stopped); "
            "rank 0 waits for it in communication",
            marks=pytest.mark.soak,
        ),
    ],
    ids=["hang", "spin", "stop"],
)
@pytest.mark.usefixtures("nothing_left")
def test_a_stalled_rank_ends_the_run_and_is_named(what: Any, words: str) -> None:
    with ends_soon(), pytest.raises(RankFailed) as failure:
        fit(toy(loss=BreakingLoss(what, call=4)), "ddp", ranks=2, stall_seconds=STALL)
    assert re.sub(r"for \d+ s", "for N s", str(failure.value)) == words
    assert failure.value.kind == "stalled"
    stacks = failure.value.traceback or ""
    assert "rank 0 of 2, process" in stacks
    if what is sleep_forever:
        assert "in sleep_forever" in stacks
    if "stopped" in words:
        assert "stopped by a signal: it cannot say where it is" in stacks


@pytest.mark.usefixtures("nothing_left")
def test_a_rank_stopped_while_it_holds_the_lock_is_named() -> None:
    def body(process: LaunchedProcess) -> None:
        process.board.row(process.index)[STEP] = 3
        process.board.row(process.index)[PHASE] = PHASE_NUMBERS["other"]
        process.board.row(process.index)[SINCE] = time.monotonic_ns()
        if process.index == 0:
            with process.board.locked():
                os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(0.3)
        with process.board.locked():
            pass

    with pytest.raises(RankFailed, match=r"rank 0 has been in other of step 3 for \d+ s \(its process is stopped\)"):
        launch(body, 2, watch=StallFinder(STALL))


@pytest.mark.usefixtures("nothing_left")
def test_a_stalled_rank_is_restarted_and_nothing_is_lost(tmp_path: Path) -> None:
    loss = BreakingLoss(signal_self(signal.SIGSTOP), call=10, unless=str(tmp_path / "struck"))
    run = fit(
        toy(loss=loss),
        "ddp",
        ranks=2,
        run_dir=tmp_path / "run",
        checkpoint_every=4,
        max_restarts=1,
        stall_seconds=STALL,
    )
    assert run.weights_sha256 == fit(toy(), "ddp", ranks=2).weights_sha256
    assert run.faults[0]["kind"] == "stalled"


class SlowTest:
    """A test set that is slow to read."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        import torch

        time.sleep(0.6)
        return torch.zeros(12), 0


@pytest.mark.soak
@pytest.mark.usefixtures("nothing_left")
def test_a_long_evaluation_is_not_a_stall() -> None:
    run = fit(toy(test=SlowTest(), epochs=1), "ddp", ranks=2, stall_seconds=1.0)
    assert run.status == "done"
    assert run.evaluation_seconds is not None
    assert run.evaluation_seconds > 1.5


@pytest.mark.soak
@pytest.mark.usefixtures("nothing_left")
def test_a_fit_off_the_main_thread_is_watched_too() -> None:
    caught: list[RankFailed] = []

    def train() -> None:
        try:
            fit(toy(loss=BreakingLoss(sleep_forever, call=3)), "ddp", ranks=2, stall_seconds=1.0)
        except RankFailed as failure:
            caught.append(failure)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join(60)
    assert [failure.kind for failure in caught] == ["stalled"]
