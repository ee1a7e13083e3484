"""Studies on an engine: opened once, used by every fit, closed at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

import manyhands as mh
from manyhands.errors import BadInput
from manyhands.studies.diagnose.diagnose import diagnose
from manyhands.world.engines.cluster import Agents, Place
from manyhands.world.engines.local import Local
from tests.agents_here import Here


class Counted(Local):
    """The engine of this host, which counts what it is asked for."""

    def __init__(self) -> None:
        self.runs = self.reserved = self.closed = 0

    def reserve(self, processes: int) -> None:
        self.reserved = max(self.reserved, processes)

    def run(self, *arguments: Any) -> Any:
        self.runs += 1
        return super().run(*arguments)

    def close(self) -> None:
        self.closed += 1


def small() -> mh.Task:
    return mh.load_task("glyphs:train=128,test=20")


def test_every_fit_of_a_comparison_runs_on_the_engine_that_was_given() -> None:
    engine = Counted()
    runs = mh.compare(
        small(), "ddp", ranks=[1, 2], threads=1, rounds=1, round_seconds=0.01, max_steps=2, progress=False, on=engine
    )
    assert [run.status for run in runs] == ["done"] * 3
    assert (engine.runs, engine.reserved, engine.closed) == (6, 2, 0)  # who opened it closes it


def test_verify_runs_on_the_engine_that_was_given() -> None:
    engine = Counted()
    found = mh.verify(small(), ["ddp"], steps=1, on=engine)
    assert found["results"][0]["equal"]
    assert engine.runs >= 2
    assert engine.reserved == 2


@dataclass(frozen=True)
class CountedHosts(Here):
    started: list[Agents] = field(default_factory=list, compare=False)

    def start(self, places: Sequence[Place], say: Callable[[str], None]) -> Agents:
        self.started.append(super().start(places, say))
        return self.started[-1]


@pytest.mark.soak
def test_hosts_are_reserved_once_for_all_rows() -> None:
    hosts = CountedHosts(each=1)
    runs = mh.compare(
        small(), ["ddp", "hogwild"], ranks=[2, 4], threads=1, rounds=0, max_steps=2, progress=False, on=hosts
    )
    assert len(hosts.started) == 1
    assert all(agent.poll() is not None for agent in hosts.agents), "agents were left behind"
    by_row = {(run.strategy, run.ranks): run for run in runs}
    assert [rank["host"] for rank in by_row["ddp", 2].per_rank] == ["left", "right"]
    assert "there is room for 2" in str(by_row["ddp", 4].reason)
    assert "cannot run over several hosts" in str(by_row["hogwild", 2].reason)


def test_more_ranks_than_a_cluster_has_are_bad_input_before_anything_starts() -> None:
    hosts = CountedHosts(each=1)
    with pytest.raises(BadInput, match="there is room for 2"):
        mh.compare(small(), "ddp", ranks=4, progress=False, on=hosts)
    with pytest.raises(BadInput, match='no engine named "slum"; did you mean "slurm"'):
        diagnose(small(), "single", on="slum")
    assert hosts.started == []
