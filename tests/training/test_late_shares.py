"""Shares that change hands: a rank that is done makes those of a slower one, and every sample is still used once."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import manyhands as mh
from manyhands.world.health.heartbeats import FINISHED, LOST, STEP, Board
from tests.breakable import BreakingLoss, signal_self, toy

fit = partial(mh.fit, progress=False, threads=1)


class Slow(nn.Module):
    """A weight for every sample; rank 1 takes its time."""

    def __init__(self, seconds: float):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(40, 1))
        self.seconds = seconds

    def forward(self, rows: Tensor) -> Tensor:
        time.sleep(self.seconds if os.environ.get("RANK") == "1" else 0.001)
        return rows @ self.table


def counting(seconds: float, **changes: Any) -> mh.Task:
    """Each sample moves a weight of its own by -1 an epoch (5 samples a step; locked updates lose no write)."""
    return mh.Task(
        model=lambda: Slow(seconds),
        train=(torch.eye(40), torch.zeros(40)),
        loss=lambda output, target: output.sum() / len(output),
        optimizer=partial(torch.optim.SGD, lr=5.0),
        batch_size=5,
        epochs=3,
        **changes,
    )


@pytest.mark.parametrize(
    ("strategy", "ranks"),
    [
        pytest.param("locked:mode=free", 2, marks=pytest.mark.soak),
        ("locked:mode=free", 3),
        ("ps:mode=async", 2),
        ("ps:mode=async,servers=2", 3),
    ],
)
@pytest.mark.usefixtures("nothing_left")
def test_every_sample_is_used_once_whoever_makes_its_share(strategy: str, ranks: int) -> None:
    """Ranks of an asynchronous parameter server once stood at the end of every epoch and waited for the slowest."""
    run = fit(counting(0.1), strategy, ranks=ranks)
    assert run.weights is not None
    assert run.weights["table"].flatten().round().tolist() == [-3.0] * 40
    assert (run.steps, run.samples, [entry["samples"] for entry in run.epochs]) == (24, 120, [40, 40, 40])
    assert run.updates == 24 * ranks
    assert sum(row["samples"] for row in run.per_rank) == 120
    assert run.per_rank[1]["samples"] < run.per_rank[0]["samples"]
    assert any("finished early" in note and "shares of others" in note for note in run.notes)
    assert None not in run.losses


def test_nobody_waits_long_for_a_slow_rank() -> None:
    """Ranks that were done early once stood at the end of every epoch until the slowest had made all its shares."""
    run = fit(counting(0.1), "hogwild", ranks=2)
    assert run.per_rank[1]["samples"] < run.samples / 2, "others made some of its shares"
    assert run.slow_rank is not None
    assert (run.slow_rank["rank"], run.slow_rank["phase"]) == (1, "forward")
    assert run.per_rank[1]["phases_ms"]["forward"] >= 99, "per step it made; it was measured low by what it gave away"


@pytest.mark.parametrize("strategy", ["hogwild", "ps:mode=async"])
def test_the_schedule_moves_on_for_shares_given_away(strategy: str) -> None:
    """A share that another makes, or an empty one, once left the rank's own learning rate behind."""

    def halving(optimizer: torch.optim.Optimizer, total: int) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: 1 - update / total)

    rates: list[float] = []
    fit(counting(0.1, schedule=halving), strategy, ranks=2, on_epoch=lambda figures: rates.append(figures.learning_rate))  # fmt: skip
    assert rates == pytest.approx([5 * 2 / 3, 5 / 3, 0.0])
    if strategy != "hogwild":
        return  # a server's schedule moves with every update, and nobody updates for an empty share
    rates.clear()  # rank 0 has the larger shares, so rank 5 of 6 has none at all; it leads nothing but must not warn
    fit(counting(0, schedule=halving), "hogwild", ranks=6, on_epoch=lambda figures: rates.append(figures.learning_rate))
    assert rates == pytest.approx([5 * 2 / 3, 5 / 3, 0.0])


@pytest.mark.parametrize("strategy", ["hogwild", "ps:mode=async"])
@pytest.mark.usefixtures("nothing_left")
def test_who_dies_last_leaves_its_shares_to_those_who_were_done(strategy: str) -> None:
    """A rank that died when the others had made all their steps once took the rest of its epoch with it."""

    def sleep_and_die() -> None:
        time.sleep(2.0)
        signal_self(signal.SIGKILL)()

    run = fit(toy(loss=BreakingLoss(sleep_and_die, call=3, rank=1)), strategy, ranks=2, on_death="continue")
    assert (run.status, run.steps, run.samples) == ("done", 16, 240)
    assert run.phases_ms is not None
    assert run.phases_ms["wait"] * run.steps > 100  # of 2000 ms; who waited in another phase was once taken for stuck


class TestBoard:
    """The rules by which shares change hands."""

    def board(self, *steps: int, last: int = 20) -> Board:
        board = Board(len(steps))
        for rank, step in enumerate(steps):
            board.plan(rank, last)
            board.row(rank)[STEP] = step
        return board

    def test_the_last_share_of_who_is_furthest_behind_goes_first(self) -> None:
        board = self.board(20, 14, 12)
        assert [board.take(20, dead=False) for _ in range(3)] == [(2, 20), (2, 19), (2, 18)]
        assert not board.keep(2, 18)
        assert board.keep(2, 17)
        assert board.keep(1, 20)

    def test_what_is_begun_stays(self) -> None:
        board = self.board(20, 18)
        assert board.take(20, dead=False) == (1, 20)
        assert board.take(20, dead=False) is None

    def test_nothing_is_claimed_twice_from_one_who_dies_after_it_gave_shares_away(self) -> None:
        board = self.board(20, 10)
        given = [board.take(20, dead=True) for _ in range(4)]
        board.row(1)[FINISHED] = 10
        board.bury(1)
        left = []
        while (share := board.take(20, dead=True)) is not None:
            left.append(share)
        assert given == [(1, 20), (1, 19), (1, 18), (1, 17)]
        assert left == [(1, step) for step in range(11, 17)]
        assert board.claim(22, 10) == [(1, 21), (1, 22)]  # the next epoch's

    def test_all_are_finished_when_the_living_are(self) -> None:
        board = self.board(20, 18)
        board.row(0)[FINISHED] = 20
        assert not board.all_finished(20)
        board.row(1)[LOST] = 19
        assert board.all_finished(20)
