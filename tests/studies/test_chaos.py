"""Chaos: runs broken on purpose end with the weights of unbroken ones, and leave nothing behind."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import manyhands as mh
from manyhands.cli.tables import show_faults
from manyhands.errors import BadInput
from manyhands.strategies import make_strategy
from manyhands.studies import chaos as chaos_file
from manyhands.studies.chaos import KEYS, chaos, chaos_matrix, left_behind
from manyhands.studies.faults import FAULTS
from manyhands.training.run_fit import run_fit
from manyhands.training.settings import FitSettings
from manyhands.world.rank import Rank
from tests.breakable import DETECTED_SECONDS, RESUMED_SECONDS, BreakingLoss, toy

break_it = partial(chaos, threads=1, max_steps=16, stall_seconds=4.0)


@pytest.fixture(scope="module")
def unbroken() -> dict[str, mh.Run]:
    """One unbroken run a strategy serves all its faults."""
    return {
        name: mh.fit(toy(test=None), name, ranks=2, threads=1, max_steps=16, progress=False)
        for name in ("ddp", "hogwild")
    }


@pytest.mark.parametrize(
    "fault",
    ["raise", "corrupt-checkpoint", *(pytest.param(fault, marks=pytest.mark.soak) for fault in ("stop", "kill"))],
)
def test_ddp_is_restarted_and_ends_with_the_same_weights(fault: str, unbroken: dict[str, mh.Run]) -> None:
    result = break_it(toy(), "ddp", fault, rank=1, step=12, ranks=2, unbroken=unbroken["ddp"])
    assert set(result) == set(KEYS)
    assert (result["strategy"], result["fault"], result["rank"], result["step"]) == ("ddp", fault, 1, 12)
    assert result["outcome"] == "resumed"
    assert result["weights_equal"] is True
    assert (result["samples_lost"], result["samples_doubled"]) == (0, 0)
    assert result["left_behind"] == []
    assert result["detected_seconds"] < DETECTED_SECONDS
    assert result["resumed_seconds"] < RESUMED_SECONDS
    assert result["steps_repeated"] >= (7 if fault == "corrupt-checkpoint" else 3), (
        "from step 8, or 4 where 8 is damaged"
    )


@pytest.mark.parametrize(
    ("fault", "rank"),
    [
        pytest.param("kill-in-start-up", 1, marks=pytest.mark.soak),
        ("kill-in-checkpoint", 0),
        pytest.param("kill-in-evaluation", 1, marks=pytest.mark.soak),
        ("kill-in-end", 0),
        pytest.param("parent-killed-in-checkpoint", 0, marks=pytest.mark.soak),
        pytest.param("parent-killed-in-end", 0, marks=pytest.mark.soak),
    ],
)
def test_kills_outside_of_the_steps(fault: str, rank: int, unbroken: dict[str, mh.Run]) -> None:
    result = break_it(toy(), "ddp", fault, ranks=2, rank=rank, unbroken=unbroken["ddp"])
    assert result["rank"] == rank
    assert result["outcome"] == "resumed" or (fault, result["outcome"]) == ("kill-in-end", "continued")
    assert result["weights_equal"] is True
    assert (result["samples_lost"], result["samples_doubled"]) == (0, 0)
    assert result["left_behind"] == []


@pytest.mark.parametrize("fault", ["slow", "disk-full"])
def test_what_does_not_end_a_rank_does_not_end_the_run(fault: str, unbroken: dict[str, mh.Run]) -> None:
    result = break_it(toy(), "ddp", fault, step=12, ranks=2, unbroken=unbroken["ddp"])
    assert result["outcome"] == "continued"
    assert result["weights_equal"] is True
    assert result["steps_repeated"] == 0
    assert result["left_behind"] == []


def test_hogwild_goes_on_without_the_rank(unbroken: dict[str, mh.Run]) -> None:
    slow = toy(
        loss=BreakingLoss(lambda: None, call=0, rank=0)
    )  # for the other: else it may make the share of that step
    result = break_it(slow, "hogwild", "kill", rank=0, step=12, ranks=2, unbroken=unbroken["hogwild"])
    assert result["outcome"] == "continued"
    assert (result["samples_lost"], result["samples_doubled"]) == (0, 0)
    assert result["left_behind"] == []


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"fault": "kil"}, 'no fault named "kil"; did you mean "kill"?'),
        ({"rank": 2}, r"ddp has processes 0 to 1 \(found --rank 2\)"),
        ({"step": 40}, r"the fault must strike in one of the 16 steps \(found --step 40\)"),
    ],
)
def test_bad_input(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message.replace("?", r"\?")):
        break_it(toy(), "ddp", **{"ranks": 2, **keywords})


def test_what_others_had_in_shared_memory_before_is_not_left_behind_by_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that somebody else had under way was named as what this one left."""
    monkeypatch.setattr(chaos_file, "SHARED", tmp_path)
    (tmp_path / "manyhands-theirs").touch()
    began = (tmp_path / "manyhands-theirs").stat().st_ctime + 0.05
    while time.time() < began + 0.05:  # the clock of files lags behind by a tick of the kernel
        time.sleep(0.01)
    assert left_behind(began, tmp_path) == []
    (tmp_path / "manyhands-ours").touch()
    assert left_behind(began, tmp_path) == ["shared memory manyhands-ours"]


class Strike:
    """Kills its rank some time after the first step, wherever it then is."""

    def __init__(self, rank: int, seconds: float):
        self.rank, self.seconds = rank, seconds

    def __call__(self, rank: Rank, step: int) -> None:
        if rank.index == self.rank and step == 1:
            timer = threading.Timer(self.seconds, os.kill, (os.getpid(), signal.SIGKILL))
            timer.daemon = True
            timer.start()


@pytest.fixture
def busy_machine(times: int) -> Iterator[None]:
    """Other work beside the ranks, in the long tests."""
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 if times > 10 else 0)]
    yield
    for burner in burners:
        burner.kill()
        burner.wait()


RANDOM = [("hogwild", 2), ("hogwild", 3), ("parameter_server:mode=async", 2), ("parameter_server", 2), ("locked", 2)]


@pytest.mark.parametrize(
    ("strategy", "ranks", "times"),
    [("hogwild", 2, 3), *(pytest.param(*row, 50, marks=pytest.mark.soak) for row in [*RANDOM, ("ddp", 2)])],
)
@pytest.mark.usefixtures("busy_machine", "nothing_left")
def test_kills_at_random_moments(strategy: str, ranks: int, times: int, tmp_path: Path) -> None:
    """Beside other work, any rank, anywhere: at work, at a meeting, in a checkpoint, while it hands over the outcome."""
    chance = random.Random(times)
    chosen = make_strategy(strategy, ranks)
    for attempt in range(times):
        settings = FitSettings.of(
            threads=1, progress=False, run_dir=tmp_path / str(attempt), checkpoint_every=4, max_restarts=1,
            on_death="continue" if chosen.traits.survives else "end", time_limit=60,
            fault=Strike(chance.randrange(ranks), chance.random() ** 2 * 0.4),
        )  # fmt: skip
        run = run_fit(toy(epochs=6), chosen, settings)
        assert (run.status, run.steps, len(run.losses)) == ("done", 48, 48)
        assert [entry["epoch"] for entry in run.epochs] == [1, 2, 3, 4, 5, 6]
        assert run.test is not None
        assert run.weights is not None
        assert run.samples is not None
        # the share in hand may be in the weights already, so it is given up; to servers a rank that dies behind all
        # others takes what it had left with it as well: they meet after every epoch of 120 samples
        behind = -(-16 // ranks) if chosen.traits.helps else 120 // ranks + ranks
        assert 720 - (behind if chosen.traits.survives else 0) <= run.samples <= 720


@pytest.mark.soak
def test_the_whole_matrix(capsys: pytest.CaptureFixture[str]) -> None:
    """No hang, nothing left behind; exact strategies end with the weights of the unbroken run."""
    results = chaos_matrix(mh.load_task("glyphs:train=2000,test=500"), ranks=2, threads=1, say=print)
    with capsys.disabled():
        show_faults(results)
    assert {result["fault"] for result in results} == set(FAULTS)
    for result in results:
        name = f"{result['strategy']} {result['fault']}"
        assert result["outcome"] in ("resumed", "continued"), name
        assert result["left_behind"] == [], name
        assert result["samples_doubled"] == 0, name
        if make_strategy(result["strategy"]).traits.exact is True:
            assert result["weights_equal"], name
            assert result["samples_lost"] == 0, name
        if result["fault"] in ("kill", "exit", "raise", "sigterm", "corrupt-checkpoint", "parent-killed"):
            assert result["detected_seconds"] < DETECTED_SECONDS, name
            assert result["resumed_seconds"] is None or result["resumed_seconds"] < RESUMED_SECONDS, name
