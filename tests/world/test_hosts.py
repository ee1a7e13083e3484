"""Two hosts: network namespaces joined by a cable, torchrun in each. What needs no shared memory trains over it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.conftest import Command

SECONDS = 90
TASK = "glyphs:train=256,test=64"


@dataclass(frozen=True)
class Host:
    """A network namespace with one end of the cable."""

    space: str
    cable: str
    address: str


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[Host, Host]]:
    if shutil.which("ip") is None:
        pytest.skip("network namespaces need iproute2 (the ip command)")
    number = os.getpid() % 250
    made = tuple(
        Host(f"mh{number}{end}", f"mhv{number}{end}", f"10.77.{number}.{side}") for side, end in ((1, "a"), (2, "b"))
    )
    try:
        try:
            for host in made:
                ip("netns", "add", host.space)
            ip("link", "add", made[0].cable, "type", "veth", "peer", "name", made[1].cable)
            for host in made:
                ip("link", "set", host.cable, "netns", host.space)
                ip("-n", host.space, "address", "add", f"{host.address}/24", "dev", host.cable)
                for device in ("lo", host.cable):
                    ip("-n", host.space, "link", "set", device, "up")
        except subprocess.CalledProcessError as problem:
            pytest.skip(f"network namespaces may not be made here: {problem.stderr.strip()}")
        yield made[0], made[1]
    finally:
        for host in made:
            subprocess.run(["ip", "netns", "delete", host.space], capture_output=True, check=False)


def torchrun(hosts: tuple[Host, Host], number: int, port: int) -> tuple[list[str], dict[str, str]]:
    """The words before the command, and the environment, on one of the hosts."""
    words = ["-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", "--node-rank", str(number)]
    return [*words, "--master-addr", hosts[0].address, "--master-port", str(port)], {}


def environment(hosts: tuple[Host, Host], number: int, port: int) -> tuple[list[str], dict[str, str]]:
    """What torchrun tells its ranks, without torchrun: each host starts one interpreter instead of two."""
    place = {"RANK": str(number), "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}
    return [], {**place, "MASTER_ADDR": hosts[0].address, "MASTER_PORT": str(port)}


def train(hosts: tuple[Host, Host], start: Callable[..., Any], port: int, *words: str) -> dict[str, object]:
    """Train on both hosts; the record that rank 0 prints."""
    command = ["-m", "manyhands", "train", TASK, *words, "--max-steps", "5", "--device", "cpu", "--json", "--quiet"]
    processes = []
    for number, host in enumerate(hosts):
        before, place = start(hosts, number, port)
        processes.append(
            subprocess.Popen(
                ["ip", "netns", "exec", host.space, sys.executable, *before, *command],
                env={**os.environ, **place, "GLOO_SOCKET_IFNAME": host.cable, "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        said = [process.communicate(timeout=SECONDS) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    for process, (_, complaints) in zip(processes, said, strict=True):
        assert process.returncode == 0, complaints[-3000:]
    found: dict[str, object] = json.loads(said[0][0])
    return found


def check(record: dict[str, object]) -> None:
    assert record["status"] == "done"
    assert record["steps"] == 5
    assert record["communication_bytes"]
    phases = record["phases_ms"]
    assert isinstance(phases, dict)
    assert phases["communication"] + phases["wait"] > 0


@pytest.mark.netns
@pytest.mark.timeout(2 * SECONDS)
def test_a_pipeline_over_two_hosts(hosts: tuple[Host, Host]) -> None:
    record = train(hosts, environment, 29501, "pipeline")  # torchrun itself: below, and launch/test_processes.py
    check(record)
    assert record["exact"] is True


@pytest.mark.netns
@pytest.mark.soak
@pytest.mark.timeout(2 * SECONDS)
@pytest.mark.parametrize(
    "words",
    [
        ["ddp"],
        ["pipeline"],
        ["model_parallel"],
        ["hybrid:replicas=2,stages=1"],
        ["parameter_server", "--ranks", "1"],
        ["fsdp"],
        ["local_sgd:period=2"],
    ],
    ids=lambda words: words[0],
)
def test_every_strategy_that_shares_no_memory(hosts: tuple[Host, Host], words: list[str]) -> None:
    check(train(hosts, torchrun, 29502, *words))


@pytest.mark.parametrize("strategy", ["hogwild", "locked"])
def test_shared_memory_is_refused_over_hosts_in_one_line(
    strategy: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Said before anyone is met, so torchrun's environment is enough."""
    place = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    for name, value in {**place, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29503"}.items():
        monkeypatch.setenv(name, value)
    code, _, complaints = command("train", TASK, strategy, "--ranks", "2", "--device", "cpu", "--quiet")
    assert code == 2, complaints
    [line] = complaints.strip().splitlines()
    assert f"{strategy} shares memory and cannot run over several hosts (hosts: 2)" in line
