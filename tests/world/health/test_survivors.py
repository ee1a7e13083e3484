"""Ranks that go on without a dead one: nothing is lost, counted twice or waited for, whenever it dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import manyhands as mh
from manyhands.errors import PeerMissing, RankFailed
from manyhands.world.health import heartbeats as watch
from manyhands.world.health.heartbeats import LOST, SAMPLES, STEP, Board
from manyhands.world.health.process_lock import ProcessLock
from manyhands.world.health.survivors import Exchange, SurvivingRank, may_go_on
from manyhands.world.launch.processes import LaunchedProcess, launch
from manyhands.world.rank import rank_of
from tests.breakable import BreakingLoss, signal_self, toy

fit = partial(mh.fit, progress=False, threads=1, on_death="continue")
die = signal_self(signal.SIGKILL)


class FatalTest:
    """A test set that kills rank 0 when it is read for the n-th epoch."""

    def __init__(self, epoch: int):
        self.epoch, self.reads = epoch, 0

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self.reads += 1
        if self.reads > 4 * (self.epoch - 1) and os.environ.get("RANK") == "0":
            die()
        return torch.zeros(12), 0


@pytest.mark.parametrize("epoch", [1, 2])
@pytest.mark.usefixtures("nothing_left")
def test_the_leading_rank_dies_while_it_evaluates(epoch: int) -> None:
    """The run once ended without weights, test figures or the epoch's entry, and called itself done."""
    run = fit(toy(test=FatalTest(epoch)), "hogwild", ranks=2)
    assert (run.status, run.steps, run.samples) == ("done", 16, 240)
    assert [entry["epoch"] for entry in run.epochs] == [1, 2]
    assert run.test is not None
    assert run.weights is not None
    assert len(run.losses) == 16


def test_a_checkpoint_after_a_death_knows_every_sample(tmp_path: Path) -> None:
    """What came before the leading rank's death was once missing from the record of a resumed run."""
    task = toy(loss=BreakingLoss(die, call=6, rank=0))
    fit(task, "hogwild", ranks=3, run_dir=tmp_path, checkpoint_every=4, max_steps=11)
    resumed = fit(toy(), "hogwild", ranks=3, run_dir=tmp_path, checkpoint_every=4, resume=True)
    assert resumed.resumed_from is not None
    assert resumed.resumed_from["step"] == 11
    assert resumed.samples == 240
    assert None not in resumed.losses


def slow_death() -> None:
    time.sleep(0.7)
    die()


def test_nobody_waits_for_the_dead_rank_that_was_furthest_behind() -> None:
    """Bounded staleness: ranks that were held back until the slowest came on once waited for it after its death."""
    task = toy(loss=BreakingLoss(slow_death, call=5, rank=0), epochs=3)
    run = fit(task, "parameter_server:mode=bounded,staleness=1", ranks=2, stall_seconds=8)
    assert (run.status, run.steps) == ("done", 24)
    assert [fault["kind"] for fault in run.faults] == ["died"]  # who waits is found to have stalled


# ---------------------------------------------------------------- handing over the outcome


def hand_over(process: LaunchedProcess, dies: str) -> Any:
    rank, _ = rank_of(process, torch.device("cpu"), SurvivingRank)
    assert isinstance(rank, SurvivingRank)
    process.board.row(process.index)[STEP] = 1
    rounds = 0
    while True:
        everyone = rank.gather(process.index)
        rounds += 1
        if dies == "before" and process.index == 0:
            die()
        outcome = (rank.index, everyone, rounds) if rank.leads else None
        if rank.deliver(outcome):
            if dies == "after" and process.index == 0:
                die()
            return None


@pytest.mark.parametrize(("dies", "wanted"), [("before", (1, [None, 1], 2)), ("after", (0, [0, 1], 1))])
@pytest.mark.usefixtures("nothing_left")
def test_the_outcome_reaches_the_caller_whoever_dies_at_the_end(dies: str, wanted: Any) -> None:
    exchange = Exchange(lambda *_: None)
    launch(partial(hand_over, dies=dies), 2, on_ask=exchange, forgive=may_go_on, time_limit=60)
    assert exchange.outcome == wanted


def test_samples_of_a_rank_that_died_after_its_last_word_count_once() -> None:
    board = Board(3)
    for rank in (0, 1):
        board.row(rank)[LOST], board.row(rank)[SAMPLES] = 5, 40
    assert board.samples_of_lost(spoken=[]) == 80
    assert board.samples_of_lost(spoken=[0, 2]) == 40


# ---------------------------------------------------------------- locks

HOLD = "import fcntl, time\nfcntl.lockf({fd}, fcntl.LOCK_EX, 1, {byte})\nprint('held', flush=True)\ntime.sleep(60)"


@pytest.fixture
def holder() -> Any:
    processes = []

    def hold(fd: int, byte: int) -> None:
        code = HOLD.format(fd=fd, byte=byte)
        process = subprocess.Popen([sys.executable, "-c", code], pass_fds=[fd], stdout=subprocess.PIPE)
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"

    yield hold
    for process in processes:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_a_strategys_lock_and_the_boards_are_two(holder: Any) -> None:
    """The board's lock was once the whole file: a rank in `locked` kept everyone from the heartbeats."""
    board = Board(1)
    holder(board.fd, 0)
    assert not ProcessLock(board.fd).try_acquire()
    with board.locked(patience=0.1):
        pass


def test_the_caller_waits_a_short_while_for_a_lock_whose_holder_is_stuck(
    holder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "BURY_SECONDS", 0.2)
    board = Board(2)
    holder(board.fd, 1)
    with pytest.raises(PeerMissing, match="the lock was not released: its holder is stuck"):
        board.bury(0)


def test_the_last_rank_is_not_done_without() -> None:
    board = Board(2)
    board.row(0)[STEP] = board.row(1)[STEP] = 3
    board.row(1)[LOST] = 2
    assert not may_go_on(RankFailed("x", rank=0, kind="died"), board)
