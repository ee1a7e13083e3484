"""Agents that srun starts: the queue, why one is lost, and that nothing is left. They only say hello here."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from manyhands.errors import BadInput, RankFailed
from manyhands.world.agents import tcp
from manyhands.world.engines import slurm_agents
from manyhands.world.engines.cluster import Place
from manyhands.world.engines.slurm import Slurm
from manyhands.world.engines.slurm_agents import SlurmAgents
from tests.conftest import pressed_once
from tests.slurm_cluster import CPUS, SlurmCluster


@contextmanager
def busy(cluster: SlurmCluster) -> Iterator[None]:
    """All CPUs taken by another job."""
    with subprocess.Popen(["srun", "-N2", "-n2", f"-c{CPUS}", "sleep", "100"], stderr=subprocess.DEVNULL) as other:
        try:
            cluster.wait_for(lambda: any("RUNNING" in job for job in cluster.jobs()), "a job that fills the cluster")
            yield
        finally:
            other.terminate()


def after(seconds: float, do: Callable[[], Any]) -> None:
    threading.Timer(seconds, do).start()


# ---------------------------------------------------------------- the queue


@pytest.mark.usefixtures("light", "impatient")
def test_a_full_queue_is_waited_in_and_ctrl_c_cancels_the_job(slurm: SlurmCluster) -> None:
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        Path("says").touch()

    with busy(slurm), pressed_once("says"), pytest.raises(KeyboardInterrupt):
        Slurm(nodes=2).start(Slurm(nodes=2).plan(4), say)
    assert re.fullmatch(r"Slurm job \d+ waits in the queue for nodes that are busy; Ctrl-C cancels it", said[0])
    assert len(said) == 1


@pytest.mark.usefixtures("light", "impatient")
def test_a_job_cancelled_in_the_queue_ends_the_wait(slurm: SlurmCluster) -> None:
    def cancel(_: str) -> None:
        slurm.said("scancel", "--state=PENDING", "--user=root")

    with busy(slurm), pytest.raises(RankFailed, match="was cancelled before its agents had started"):
        Slurm(nodes=2).start(Slurm(nodes=2).plan(4), cancel)


@pytest.mark.soak
@pytest.mark.usefixtures("light", "impatient")
def test_what_would_wait_for_ever_is_refused(slurm: SlurmCluster) -> None:
    """--test-only finds nothing wrong with more time than the partition gives: the job would stay in the queue."""
    asked = Slurm(partition="short", time="10")
    with pytest.raises(BadInput, match="Slurm would never start this job: PartitionTimeLimit"):
        asked.start(asked.plan(2), print)


@pytest.mark.usefixtures("light", "impatient")
def test_nodes_that_are_away_are_waited_for_but_not_for_ever(
    slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    slurm.said("scontrol", "update", "nodename=n2", "state=drain", "reason=repair")
    monkeypatch.setattr(slurm_agents, "AWAY_SECONDS", 0.5)
    try:
        assert [place.processes for place in Slurm().plan(4)] == [4]
        with pytest.raises(RankFailed, match=r"waited 0 minutes for nodes that are down or drained"):
            Slurm(nodes=2).start(Slurm(nodes=2).plan(4), said.append)
    finally:
        slurm.said("scontrol", "update", "nodename=n2", "state=resume")
    assert re.fullmatch(r"Slurm job \d+ waits in the queue for nodes that are down or drained( \(n2\))?; .*", said[0])


@pytest.mark.usefixtures("light", "impatient")
def test_how_long_to_queue_is_srun_s_own_option(slurm: SlurmCluster) -> None:
    with busy(slurm), pytest.raises(BadInput, match="Slurm refuses the request: Requested nodes are busy"):
        started(extra=["--immediate=1"])


# ---------------------------------------------------------------- how agents end


def started(say: Callable[[str], None] = print, **fields: Any) -> SlurmAgents:
    asked = Slurm(nodes=2, **fields)
    agents = asked.start(asked.plan(4), say)
    assert isinstance(agents, SlurmAgents)
    return agents


def hears_the_end_of(agents: SlurmAgents, *hosts: str) -> list[int]:
    gone: list[int] = []
    until = time.monotonic() + 60
    while len(gone) < len(hosts) and time.monotonic() < until:
        gone += [agent for agent, kind, _ in agents.heard(0.2) if kind == "gone"]
    assert {agents.places[agent].host for agent in gone} == set(hosts)
    return gone


@pytest.mark.usefixtures("light", "impatient")
def test_agents_are_started_once_per_node_and_give_it_back(slurm: SlurmCluster) -> None:
    agents = started()
    assert agents.places == [Place("n1", 2), Place("n2", 2)]
    assert agents.folder.stat().st_mode & 0o777 == 0o700
    agents.close()
    assert all("COMPLETING" in job for job in slurm.jobs())


@pytest.mark.usefixtures("light", "impatient")
def test_a_cancelled_job_is_called_so(slurm: SlurmCluster) -> None:
    agents = started()
    slurm.said("scancel", "--user=root")
    gone = hears_the_end_of(agents, "n1", "n2")
    assert re.fullmatch(r"Slurm job \d+ was cancelled", agents.why(gone[0]) or "")
    agents.close()


@pytest.mark.usefixtures("light", "impatient")
def test_a_node_that_slurm_takes_down_is_named(slurm: SlurmCluster) -> None:
    agents = started()
    slurm.said("scontrol", "update", "nodename=n2", "state=down", "reason=smoke")
    hears_the_end_of(agents, "n1", "n2")
    for agent in (0, 1):  # Slurm ends the job on both; by then the node may be back
        why = agents.why(agent) or ""
        assert re.fullmatch(r"node n2 of Slurm job \d+ failed|Slurm says that node n2 is down: smoke", why)
    agents.close()


@pytest.mark.soak
@pytest.mark.usefixtures("light", "impatient")
def test_a_node_lost_with_all_it_ran_is_another_ones_reason_to_be_asked_for(slurm: SlurmCluster) -> None:
    """Slurm gives out a node for minutes after it is gone; a start on it fails and is tried elsewhere or later."""
    agents, said = started(), list[str]()
    slurm.signal_node("n2", signal.SIGKILL)
    hears_the_end_of(agents, "n2")
    agents.close()
    after(1.0, lambda: slurm.start_node("n2"))
    agents = started(said.append)
    assert [place.host for place in agents.places] == ["n1", "n2"]
    agents.close()


@pytest.mark.usefixtures("light", "impatient")
def test_agents_that_cannot_start_are_quoted(slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that a node does not see; on one of two nodes srun would wait for the other."""
    code = "import os, sys, time; os.environ['SLURM_NODEID'] == '0' and time.sleep(60); sys.exit('manyhands: the agent on n2 found no caller: no such file')"
    monkeypatch.setattr(tcp, "agent_command", lambda folder: [sys.executable, "-c", code])
    with pytest.raises(
        BadInput, match="the agent on n2 found no caller: no such file; start in a folder that all nodes see"
    ):
        started()


@pytest.mark.soak
@pytest.mark.usefixtures("light", "impatient")
def test_agents_that_do_not_end_are_ended(slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frozen node: neither its agent nor srun ends by itself."""
    monkeypatch.setattr(slurm_agents, "END_SECONDS", 1.0)
    agents = started()
    slurm.signal_node("n2", signal.SIGSTOP)
    try:
        agents.close()
        assert not [job for job in slurm.jobs() if "COMPLETING" not in job]
    finally:
        slurm.signal_node("n2", signal.SIGCONT)
