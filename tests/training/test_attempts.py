"""Attempts of a fit on an engine that has room for fewer ranks after a failure, and for more later; checkpoints of ranks
that do not see the caller's folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import manyhands as mh
from manyhands.errors import RankFailed
from manyhands.strategies import make_strategy
from manyhands.training.run_fit import run_fit
from manyhands.training.settings import FitSettings
from manyhands.world.engines.local import Local
from manyhands.world.rank import Rank
from tests.breakable import checkpoint_of, toy, wait_for
from tests.conftest import distance

STEPS = 12


class Shrinking(Local):
    """Has room for so many processes after each attempt."""

    def __init__(self, *rooms: int):
        self.rooms = list(rooms)
        self.asked_for_more: list[bool] = []

    def room(self, processes: int) -> int:
        return min(processes, self.rooms.pop(0))

    def run(self, *positional: Any) -> Any:
        found = super().run(*positional)
        if self.more is not None:  # what an engine finds while ranks are missing
            self.asked_for_more += [self.more(2), self.more(3)]
            raise RankFailed("there is room for more ranks", kind="room")
        return found


class Elsewhere(Local):
    """Ranks that see no file of the caller's: its marker is gone before they look."""

    elsewhere = True

    def run(self, body: Any, shared: Any, ready: Any, *others: Any) -> Any:
        def and_hide() -> None:
            ready()
            for marker in Path("run").glob(".manyhands-*"):
                marker.unlink()

        return super().run(body, shared, and_hide, *others)


def dies_at_six() -> Callable[[Rank, int], None]:
    """Of rank 1, once the checkpoint of step 4 is there: it is written while training goes on."""
    four = checkpoint_of(Path("run"), 4)

    def die(rank: Rank, step: int) -> None:
        if step == 6 and rank.index == 1:
            wait_for(four)
            os._exit(3)

    return die


def fit(engine: Local, spec: str = "ddp", ranks: int = 3, **keywords: Any) -> mh.Run:
    settings = FitSettings.of(
        on=engine, max_steps=STEPS, run_dir="run", checkpoint_every=2, progress=False, threads=1, **keywords
    )
    return run_fit(toy(), make_strategy(spec, ranks), settings)


@pytest.fixture(scope="module")
def unbroken() -> mh.Run:
    return mh.fit(toy(), "ddp", ranks=3, max_steps=STEPS, progress=False, threads=1)


def test_a_run_goes_on_with_fewer_ranks_then_with_all_again(unbroken: mh.Run) -> None:
    engine = Shrinking(2, 3)
    run = fit(engine, fault=dies_at_six(), max_restarts=1)
    died, fewer, more = run.faults
    assert died["resumed_step"] == 4
    assert (fewer["kind"], fewer["from"], fewer["to"], fewer["resumed_step"]) == ("ranks changed", 3, 2, 4)
    assert fewer["message"] == "continues with 2 ranks instead of 3 from step 4: there is room for 2 of 3 processes"
    assert (more["kind"], more["from"], more["to"]) == ("ranks changed", 2, 3)
    assert all(fault["resumed_seconds"] > 0 for fault in run.faults)
    assert engine.asked_for_more == [False, True]  # as many as now are no reason to start again
    assert (run.status, run.ranks, run.restarts) == ("done", 3, 1)  # more ranks are no failure
    assert distance(run, unbroken) < 1e-6


@pytest.mark.soak
def test_a_strategy_that_cannot_take_fewer_ranks_ends_with_both_reasons() -> None:
    with pytest.raises(
        mh.RankFailed, match=r"rank 1 of 4 .*; hybrid cannot continue with 3 ranks instead of 4: hybrid: repl"
    ):
        fit(Shrinking(3), "hybrid", ranks=4, fault=dies_at_six(), max_restarts=1)


def test_checkpoints_of_ranks_that_do_not_see_the_folder_are_written_by_the_caller(unbroken: mh.Run) -> None:
    run = fit(Elsewhere(), fault=dies_at_six(), max_restarts=1)
    assert run.faults[0]["resumed_step"] == 4
    assert run.weights_sha256 == unbroken.weights_sha256
    assert sorted(path.name for path in Path("run/checkpoints").iterdir()) == [
        "step-00000008",
        "step-00000010",
        "step-00000012",
    ]
    assert list(Path("run").glob(".manyhands-*")) == []


def test_a_checkpoint_that_the_caller_cannot_write_is_a_fault_and_training_goes_on() -> None:
    Path("run").mkdir()
    Path("run/checkpoints").write_text("in the way")
    run = fit(Elsewhere())
    assert run.status == "done"
    assert "the checkpoint after step 2 was not written" in run.faults[0]["message"]
