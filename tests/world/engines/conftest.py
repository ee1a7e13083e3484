"""A real Slurm of two nodes for the tests of this folder, and agents that only say hello."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import manyhands as mh
from manyhands.world.agents import tcp
from manyhands.world.agents.versions import versions
from manyhands.world.engines import slurm_agents
from tests.slurm_cluster import SlurmCluster, missing, slurm_cluster

SRC = Path(mh.__file__).parents[1]
HELLO = """
import json, os, pickle, socket, sys
sys.path.insert(0, {src!r})
from manyhands.world.agents.handshake import greet_caller
where = json.load(open({folder!r} + "/caller.json"))
line = socket.create_connection(("127.0.0.1", where["port"]))
greet_caller(line, open({folder!r} + "/key", "rb").read())
hello = {{"place": int(os.environ["SLURM_NODEID"]), "host": os.environ["SLURMD_NODENAME"], "cores": 1}}
hello["versions"] = {versions!r}
word = pickle.dumps(("hello", hello))
line.sendall(len(word).to_bytes(8, "little") + word)
while line.recv(1 << 16):
    pass
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever comes first starts the cluster, and installs Slurm where it is missing: its own limit is too short for that."""
    for item in items:
        if {"cluster", "slurm"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.timeout(700))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    reason = missing()
    if reason:
        pytest.skip(reason)
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as up:
        yield up


@pytest.fixture
def slurm(cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCluster]:
    """With both nodes idle; nothing may be left running on them, and no folder."""
    for name in [name for name in os.environ if name.startswith(("SLURM", "SRUN"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
    cluster.all_idle()
    yield cluster
    cluster.wait_for(lambda: not cluster.work(), "the end of all that ran on the nodes", 40)
    assert not [job for job in cluster.jobs() if "COMPLETING" not in job]
    assert not list(Path.cwd().glob(".manyhands-*"))


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents that say hello and wait for the end of their line, without torch."""
    monkeypatch.setattr(
        tcp,
        "agent_command",
        lambda folder: [sys.executable, "-c", HELLO.format(src=str(SRC), folder=str(folder), versions=versions())],
    )


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_agents, "LOOK_SECONDS", 0.3)
    monkeypatch.setattr(slurm_agents, "LEAVE_SECONDS", 1.0)
    monkeypatch.setattr(slurm_agents, "WHY_SECONDS", 30.0)  # but not of Slurm itself, which takes its time when busy
