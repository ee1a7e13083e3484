"""What the cores did for a rank: work and sleep can be told apart, and what is sampled stands for the rest."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

import manyhands as mh
from manyhands.record import core_watch
from manyhands.record.core_watch import CoreWatch
from manyhands.record.run import PHASES
from tests.conftest import make_task, quick_fit

LOAD, FORWARD, WAIT = (PHASES.index(name) for name in ("load", "forward", "wait"))


class Cores:
    """A machine whose clocks are set by hand."""

    def __init__(self, patch: pytest.MonkeyPatch):
        self.used = self.without = 0
        patch.setattr(core_watch, "process_time_ns", lambda: self.used)
        patch.setattr(core_watch.CoreTime, "nanoseconds_without", lambda _: self.without)


def test_cpu_and_stolen_time_are_booked_to_the_phase_that_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    cores, watch = Cores(monkeypatch), CoreWatch()
    watch.begin()
    cores.used, cores.without = 10, 5
    watch.look(LOAD, wall=100, share=1.0)
    cores.used, cores.without = 210, 25
    watch.look(FORWARD, wall=100, share=0.5)  # the other half belongs to what comes next
    watch.look(WAIT, wall=50, share=1.0)
    assert watch.end() == 5 + 10  # waiting needs no core
    found = watch.cpu_per_wall()
    assert (found[LOAD], found[FORWARD], found[WAIT]) == (0.1, 1.0, 2.0)
    assert found[PHASES.index("update")] is None


def test_a_watched_share_weighs_as_many_as_it_stands_for(monkeypatch: pytest.MonkeyPatch) -> None:
    cores, watch = Cores(monkeypatch), CoreWatch()
    for used, shares in ((100, 1), (0, 3)):
        watch.begin()
        cores.used += used
        watch.look(LOAD, wall=100, share=1.0)
        watch.end(shares)
    assert watch.cpu_per_wall()[LOAD] == 0.25


class Sleepy(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.004)
        return x


def test_sleep_in_forward_has_no_cpu_time_and_gives_its_core_away(tmp_path: Path) -> None:
    task = make_task("mlp", epochs=1)
    slept = task.replace(model=lambda: torch.nn.Sequential(Sleepy(), task.model()))
    run = quick_fit(slept, "ddp", ranks=2, max_steps=20, run_dir=tmp_path)
    for row in mh.Run.load(tmp_path).per_rank:
        assert row["phases_ms"]["forward"] > 4
        assert row["cpu_ms"]["forward"] < row["phases_ms"]["forward"] - 1  # a few steps are sampled
        assert set(row["cpu_ms"]) == set(PHASES)
        assert row["switches"]["voluntary"] >= 1
        assert row["switches"]["involuntary"] >= 0
        assert row["stolen_ms"] >= 0
    assert run.per_rank[0]["cpu_ms"]["transfer"] == 0  # no such phase here: no time, and none of a core
