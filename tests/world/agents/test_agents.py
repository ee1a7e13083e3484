"""Agents on two hosts that are processes of this machine: what comes back is what comes back from local ranks."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import manyhands as mh
from manyhands.world.agents.handshake import Stranger, greet_agent, greet_caller
from manyhands.world.agents.versions import same_versions, versions
from manyhands.world.engines.choose import cluster_of, opened
from manyhands.world.engines.cluster import Place, evenly, packed
from manyhands.world.engines.remote import Remote
from tests.agents_here import Here
from tests.breakable import BreakingLoss, checkpoint_of, signal_self, toy

KEY, OTHER = b"k" * 32, b"o" * 32
pytestmark = pytest.mark.timeout(300)  # every host imports torch


@pytest.fixture(scope="module")
def two_hosts() -> Iterator[Remote]:
    """One pair of agents for all fits that break nothing: they take launch after launch."""
    with opened(Here()) as engine:
        assert isinstance(engine, Remote)
        engine.reserve(4)
        yield engine


@pytest.mark.soak
def test_the_same_weights_as_local_ranks_that_talk_the_same_way(two_hosts: Remote) -> None:
    here = mh.fit(toy(), "ddp:transport=gloo", ranks=2, max_steps=5, device="cpu", progress=False)
    there = mh.fit(toy(), "ddp:transport=gloo", ranks=2, max_steps=5, progress=False, on=two_hosts)
    assert there.weights_sha256 == here.weights_sha256
    assert [one["host"] for one in there.per_rank or []] == ["left", "right"]
    assert there.startup_seconds is not None
    assert 0 < there.startup_seconds < 120  # clocks of two hosts have nothing in common: it was once a million


def test_callbacks_run_here_and_may_end_the_run(two_hosts: Remote) -> None:
    seen = []

    def look(step: Any) -> bool:
        seen.append((os.getpid(), step.step))
        return step.step >= 3

    run = mh.fit(toy(), "ddp", ranks=2, max_steps=20, on_step=look, progress=False, on=two_hosts)
    assert run.status == "stopped"
    assert seen == [(os.getpid(), step) for step in (1, 2, 3)]


def test_a_failure_names_rank_host_and_step_and_brings_its_traceback(two_hosts: Remote) -> None:
    def fail() -> None:
        raise ZeroDivisionError("on purpose")

    with pytest.raises(
        mh.RankFailed, match=r"rank 1 of 2 on right failed in step 3, forward: ZeroDivisionError"
    ) as caught:
        mh.fit(toy(loss=BreakingLoss(fail, 3)), "ddp", ranks=2, progress=False, on=two_hosts)
    assert (caught.value.host, caught.value.step) == ("right", 3)
    assert "on purpose" in (caught.value.traceback or "")


@pytest.mark.soak
def test_a_rank_that_hangs_is_named_with_its_host_and_everybodys_stacks(two_hosts: Remote) -> None:
    task = toy(loss=BreakingLoss(lambda: time.sleep(600), 3))
    with pytest.raises(
        mh.RankFailed, match=r"rank 1 on right has been in forward of step 3 for \d+ s; rank 0 waits"
    ) as caught:
        mh.fit(task, "ddp", ranks=2, stall_seconds=2.0, progress=False, on=two_hosts)
    stacks = caught.value.traceback or ""
    assert "rank 0 of 2 on left, process" in stacks
    assert "breakable.py" in stacks


def test_a_dead_rank_is_restarted_from_the_last_checkpoint(two_hosts: Remote, tmp_path: Path) -> None:
    """The agents stay; the broken launch leaves nothing that the next one could meet."""
    whole = mh.fit(toy(), "ddp", ranks=2, progress=False, on=two_hosts)
    eight = checkpoint_of(tmp_path / "run", 8)
    task = toy(loss=BreakingLoss(signal_self(signal.SIGKILL), 10, unless=str(tmp_path / "once"), after=eight))
    run = mh.fit(
        task, "ddp", ranks=2, run_dir=tmp_path / "run", checkpoint_every=4, max_restarts=1, progress=False, on=two_hosts
    )
    [fault] = run.faults
    assert (fault["kind"], fault["rank"], fault["host"], fault["resumed_step"]) == ("died", 1, "right", 8)
    assert "killed by signal 9 (SIGKILL)" in fault["message"]
    assert run.weights_sha256 == whole.weights_sha256


def test_an_agent_that_is_lost_is_a_lost_host_and_another_takes_its_place(two_hosts: Remote, tmp_path: Path) -> None:
    """Struck from a callback, ranks had gone on by up to four steps before the blow fell: the rank strikes and waits."""
    whole = mh.fit(toy(), "ddp:transport=gloo", ranks=2, progress=False, on=two_hosts)
    assert isinstance(two_hosts.cluster, Here)
    agent = two_hosts.cluster.agents[1].pid

    def strike() -> None:
        os.kill(agent, signal.SIGKILL)
        time.sleep(600)

    eight = checkpoint_of(tmp_path / "run", 8)
    run = mh.fit(
        toy(loss=BreakingLoss(strike, 10, unless=str(tmp_path / "once"), after=eight)), "ddp:transport=gloo", ranks=2,
        run_dir=tmp_path / "run", checkpoint_every=4, max_restarts=1, progress=False, on=two_hosts,
    )  # fmt: skip
    [fault] = run.faults
    assert fault["message"].startswith("host right is lost (its agent has ended), with rank 1 in ")
    assert (fault["host"], fault["resumed_step"]) == ("right", 8)
    assert run.weights_sha256 == whole.weights_sha256
    assert not psutil.pid_exists(agent)


def test_what_shares_memory_is_refused_over_hosts(two_hosts: Remote) -> None:
    with pytest.raises(
        mh.Refused, match=r"hogwild shares memory and cannot run over several hosts \(hosts: 2\); use ddp"
    ):
        mh.fit(toy(), "hogwild", ranks=2, progress=False, on=two_hosts)


@pytest.mark.soak
def test_shared_memory_goes_where_all_ranks_are_on_one_host() -> None:
    run = mh.fit(toy(), "hogwild", ranks=2, progress=False, on=Here(hosts=("alone",)))
    assert run.status == "done"
    assert {one["host"] for one in run.per_rank or []} != {"left"}


def test_going_on_without_the_dead_needs_ranks_of_this_host(two_hosts: Remote) -> None:
    with pytest.raises(
        mh.BadInput, match=r"on_death=continue needs ranks on this host \(found --on here\); leave out --on"
    ):
        mh.fit(toy(), "hogwild", ranks=2, on_death="continue", progress=False, on=two_hosts)


def test_more_processes_than_there_is_room_for(two_hosts: Remote) -> None:
    with pytest.raises(
        mh.BadInput, match=r"9 processes were asked for but there is room for \d \(left: .*; use fewer ranks"
    ):
        mh.fit(toy(), "ddp", ranks=9, progress=False, on=two_hosts)


def test_how_processes_are_divided() -> None:
    room = [Place("a", 4), Place("b", 2), Place("c", 4)]
    assert [place.processes for place in packed(5, room)] == [4, 1, 0]
    assert [place.processes for place in evenly(5, room)] == [2, 2, 1]
    assert [place.processes for place in evenly(9, room)] == [4, 2, 3]


def test_engines_that_nobody_knows() -> None:
    with pytest.raises(mh.BadInput, match=r'no engine named "slurn"; did you mean "slurm"\?'):
        cluster_of("slurn")
    with pytest.raises(
        mh.BadInput, match=r"on must be local, slurm, ray, mh.Slurm\(...\) or mh.Ray\(...\) \(found 3\)"
    ):
        cluster_of(3)  # type: ignore[arg-type]


def test_a_host_with_other_versions_is_refused() -> None:
    """What travels by value from one Python to another fails in ways that name nothing."""
    with pytest.raises(mh.BadInput, match=r"n7 has torch 1\.0 but this machine has .*; install the same on both"):
        same_versions("n7", {**versions(), "torch": "1.0"})
    same_versions("n7", versions())


@pytest.mark.parametrize(("caller", "agent"), [(KEY, KEY), (KEY, OTHER)], ids=["friends", "strangers"])
def test_nobody_is_listened_to_who_does_not_know_the_key(caller: bytes, agent: bytes) -> None:
    """What follows the greeting is unpickled."""
    ours, theirs = socket.socketpair()
    found: list[object] = []

    def answer() -> None:
        try:
            greet_caller(theirs, agent)
            found.append("met")
        except OSError as problem:
            found.append(type(problem))

    thread = threading.Thread(target=answer)
    thread.start()
    if caller == agent:
        greet_agent(ours, caller)
    else:
        with pytest.raises(Stranger, match="it does not know the key"):
            greet_agent(ours, caller)
        ours.close()
    thread.join()
    assert found == (["met"] if caller == agent else [Stranger])
    for end in (ours, theirs):
        end.close()


@pytest.mark.soak
def test_an_agent_whose_caller_dies_ends_with_all_its_ranks(tmp_path: Path) -> None:
    script = tmp_path / "caller.py"
    script.write_text(
        "import os, signal, manyhands as mh\n"
        "from tests.agents_here import Here\nfrom tests.breakable import toy\n"
        "here = Here()\n"
        "def die(step):\n"
        "    if step.step == 3:\n"
        "        print(*[agent.pid for agent in here.agents], flush=True)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "mh.fit(toy(), 'ddp', ranks=2, on_step=die, progress=False, on=here)\n"
    )
    said = subprocess.run(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path.cwd(),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    ).stdout
    agents = [psutil.Process(int(pid)) for pid in said.split() if psutil.pid_exists(int(pid))]
    processes = [child for agent in agents for child in [agent, *agent.children(recursive=True)]]
    _, left = psutil.wait_procs(processes, timeout=60)
    assert not left
