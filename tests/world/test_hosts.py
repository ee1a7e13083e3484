"""Two hosts: network namespaces joined by a cable, torchrun in each. What needs no shared memory trains over it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

import manyhands as mh
from manyhands.record.run import Run
from manyhands.studies.plan.measured_link import link_of
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
    command = ["train", TASK, *words, "--max-steps", "5", "--device", "cpu", "--json", "--quiet"]
    found: dict[str, object] = json.loads(on_both(hosts, start, port, command))
    return found


def on_both(hosts: tuple[Host, Host], start: Callable[..., Any], port: int, command: list[str]) -> str:
    """What the first host's process prints."""
    processes = []
    for number, host in enumerate(hosts):
        before, place = start(hosts, number, port)
        processes.append(
            subprocess.Popen(
                ["ip", "netns", "exec", host.space, sys.executable, *before, "-m", "manyhands", *command],
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
    return said[0][0]


def check(record: dict[str, object]) -> None:
    assert record["status"] == "done"
    assert record["steps"] == 5
    assert record["communication_bytes"]
    phases = record["phases_ms"]
    assert isinstance(phases, dict)
    assert phases["communication"] + phases["wait"] > 0


@pytest.mark.soak
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


@pytest.mark.netns
@pytest.mark.timeout(2 * SECONDS)
def test_a_link_is_measured_for_forecasts(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    """A forecast could be told what a link is said to be, but not what it is."""
    cable, file = hosts[0].cable, tmp_path / "link.json"
    limit = ["qdisc", "add", "dev", cable, "root", "tbf", "rate", "200mbit", "burst", "64kb", "latency", "50ms"]
    if subprocess.run(["tc", "-n", hosts[0].space, *limit], capture_output=True, check=False).returncode:
        pytest.skip("tc may not limit a link here")
    try:
        said = on_both(hosts, environment, 29507, ["plan", "--measure-link", str(file)])
    finally:
        subprocess.run(["tc", "-n", hosts[0].space, "qdisc", "del", "dev", cable, "root"], check=False)
    link = link_of(str(file))
    # one end alone is limited: there and back takes what it takes at 200 Mbit/s one way, so half of it twice the speed
    assert 0.8 < link.bytes_per_second / 50e6 < 1.2
    assert 0 <= link.seconds < 0.01
    assert said == f"{link}, kept in {file}; forecast with it: manyhands plan TASK --hosts 2 --link {file}\n"


# ---------------------------------------------------------------- torchrun's own ways: compare, faults, elasticity

SLOW = """
import os
import time
import torch
from manyhands.tasks import load_task

class Loss(torch.nn.Module):
    def forward(self, output, target):
        if torch.is_grad_enabled():
            time.sleep(5 if os.environ.get("WORLD_SIZE") == "1" and os.path.exists("wait") else {pause})
        return torch.nn.functional.cross_entropy(output, target)

task = load_task("glyphs:train=2560,test=64").replace(loss=Loss())
"""
STEPS, EVERY = 30, 4


class Torchruns:
    """One torchrun on each host; everything they print goes to files."""

    def __init__(self, hosts: tuple[Host, Host], folder: Path):
        self.hosts, self.folder, self.started = hosts, folder, dict[int, subprocess.Popen[bytes]]()
        (folder / "slow.py").write_text(SLOW.format(pause=0.2))

    def start(self, number: int, words: list[str], command: list[str]) -> None:
        host = self.hosts[number]
        shared = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "GLOO_SOCKET_IFNAME": host.cable, "OMP_NUM_THREADS": "1"}
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1", *words]
        with open(self.folder / f"{number}.log", "wb") as log:
            self.started[number] = subprocess.Popen(
                ["ip", "netns", "exec", host.space, *torchrun, "-m", "manyhands", *command],
                env={**os.environ, **shared}, stdout=log, stderr=subprocess.STDOUT, cwd=self.folder,
            )  # fmt: skip

    def train(self, number: int, elastic: bool) -> None:
        """The same fit on each host; elastic: with as many hosts as there are, and started again where some go or come."""
        first, own = self.hosts[0].address, self.hosts[number].address
        words = ["--nnodes", "2", "--node-rank", str(number), "--master-addr", first, "--master-port", "29505"]
        if elastic:
            words = ["--nnodes", "1:2", "--max-restarts", "3", "--rdzv-backend", "c10d", "--rdzv-id", "job"]
            words += ["--rdzv-endpoint", f"{first}:29506", "--local-addr", own]
            words += ["--rdzv-conf", f"is_host={int(number == 0)},last_call_timeout=2"]
        command = ["train", "slow.py", "ddp", "--max-steps", str(STEPS), "--checkpoint-every", str(EVERY)]
        self.start(number, words, [*command, "--run-dir", "run", "--threads", "1", "--device", "cpu", "--quiet"])

    def processes(self, number: int) -> list[psutil.Process]:
        try:
            first = psutil.Process(self.started[number].pid)
            return [first, *first.children(recursive=True)]
        except psutil.Error:
            return []

    def signal(self, number: int, what: int) -> None:
        for process in self.processes(number):
            with contextlib.suppress(psutil.Error):
                process.send_signal(what)

    def wait_for(self, what: Callable[[], bool], seconds: float = 150) -> float:
        began = time.monotonic()
        while not what():
            assert time.monotonic() - began < seconds, self.said(0)[-3000:] + self.said(1)[-3000:]
            time.sleep(0.05)
        return time.monotonic() - began

    def under_way(self) -> bool:
        return len(list((self.folder / "run" / "checkpoints").glob("step-*"))) >= 2

    def ended(self, number: int) -> int:
        self.wait_for(lambda: self.started[number].poll() is not None)
        return int(self.started[number].returncode)

    def said(self, number: int) -> str:
        file = self.folder / f"{number}.log"
        return file.read_text(errors="replace") if file.exists() else ""


@pytest.fixture
def torchruns(hosts: tuple[Host, Host], tmp_path: Path) -> Iterator[Torchruns]:
    started = Torchruns(hosts, tmp_path)
    try:
        yield started
    finally:
        for number in started.started:
            started.signal(number, signal.SIGCONT)
            started.signal(number, signal.SIGKILL)
            started.started[number].wait()
        ip("-n", hosts[1].space, "link", "set", hosts[1].cable, "up")


def strike(torchruns: Torchruns, what: str) -> None:
    """Something happens to the second host."""
    host = torchruns.hosts[1]
    if what == "cut":
        ip("-n", host.space, "link", "set", host.cable, "down")
    else:
        torchruns.signal(1, signal.SIGSTOP if what == "frozen" else signal.SIGKILL)


def check_weights(run: Run, tmp_path: Path) -> None:
    (tmp_path / "quick.py").write_text(SLOW.format(pause=0))
    task = mh.load_task(str(tmp_path / "quick.py"))
    single = mh.fit(task, max_steps=STEPS, threads=1, device="cpu", progress=False)
    assert run.weights is not None
    assert single.weights is not None
    apart = [float((value - run.weights[name]).abs().max()) for name, value in single.weights.items()]
    assert max(apart) < 1e-6


LOST = {
    "cut": r"host \S+ \(rank 1\) has been silent for 1\d s: it is frozen, gone or cut off; this rank ends",
    "frozen": r"host \S+ \(rank 1\) has been silent for 1\d s: it is frozen, gone or cut off; this rank ends",
    "killed": r"rank 1 of 2 on \S+ is gone, as rank 0 saw in step \d+",
}


@pytest.mark.netns
@pytest.mark.soak
@pytest.mark.timeout(400)
@pytest.mark.parametrize("what", LOST)
def test_a_lost_host_is_named_in_one_line_and_nothing_is_left(torchruns: Torchruns, what: str) -> None:
    """Over hosts nobody watched: it was noticed after the ten minutes of a collective."""
    for number in range(2):
        torchruns.train(number, elastic=False)
    torchruns.wait_for(torchruns.under_way)
    strike(torchruns, what)
    assert torchruns.ended(0) == 1
    lines = [line for line in torchruns.said(0).splitlines() if re.search(LOST[what], line)]
    assert len(lines) == 1, torchruns.said(0)[-3000:]
    assert torchruns.processes(0) == []
    run = Run.load(torchruns.folder / "run")
    assert run.status == "failed"
    assert re.search(LOST[what].removesuffix("; this rank ends"), run.reason or "")
    if what == "frozen":
        torchruns.signal(1, signal.SIGCONT)
    assert torchruns.ended(1) in (1, -signal.SIGKILL)
    assert torchruns.processes(1) == []


@pytest.mark.netns
@pytest.mark.soak
@pytest.mark.timeout(400)
@pytest.mark.parametrize("what", LOST)
def test_a_run_goes_on_with_the_hosts_that_are_left(torchruns: Torchruns, what: str, tmp_path: Path) -> None:
    for number in range(2):
        torchruns.train(number, elastic=True)
    torchruns.wait_for(torchruns.under_way)
    strike(torchruns, what)
    assert torchruns.ended(0) == 0, torchruns.said(0)[-3000:]
    run = Run.load(tmp_path / "run")
    assert (run.status, run.ranks, run.steps, run.batch_size) == ("done", 1, STEPS, 32)
    *_, change = [fault for fault in run.faults if fault["kind"] == "ranks changed"]  # the other may have come late
    assert (change["from"], change["to"]) == (2, 1)
    assert change["resumed_step"] >= EVERY
    assert change["message"] == f"continues with 1 rank instead of 2 from step {change['resumed_step']}"
    check_weights(run, tmp_path)


@pytest.mark.netns
@pytest.mark.soak
@pytest.mark.timeout(400)
def test_a_run_goes_on_with_a_host_that_comes(torchruns: Torchruns, tmp_path: Path) -> None:
    """torchrun counts no restart then: the checkpoints say that this fit had begun."""
    torchruns.train(0, elastic=True)
    torchruns.wait_for(torchruns.under_way)
    (tmp_path / "wait").touch()  # one host alone is slow from here on, so that it is not done before the other comes
    torchruns.train(1, elastic=True)
    assert torchruns.ended(0) == 0, torchruns.said(0)[-3000:]
    assert torchruns.ended(1) == 0, torchruns.said(1)[-3000:]
    run = Run.load(tmp_path / "run")
    assert (run.status, run.ranks, run.steps, run.restarts) == ("done", 2, STEPS, 0)
    assert [(fault["kind"], fault["from"], fault["to"]) for fault in run.faults] == [("ranks changed", 1, 2)]
    check_weights(run, tmp_path)


@pytest.mark.netns
@pytest.mark.soak
@pytest.mark.timeout(400)
def test_a_comparison_over_two_hosts(torchruns: Torchruns, tmp_path: Path) -> None:
    """Rows take the processes they need; the first host alone speaks."""
    for number in range(2):
        words = ["--nnodes", "2", "--node-rank", str(number), "--master-addr", torchruns.hosts[0].address]
        command = [
            "compare",
            TASK,
            "single",
            "ddp",
            "hogwild",
            "parameter_server",
            "--max-steps",
            "4",
            "--threads",
            "1",
        ]
        options = ["--rounds", "1", "--run-dir", "all", "--json", "--device", "cpu"]
        torchruns.start(number, [*words, "--master-port", "29507"], [*command, *options])
    assert [torchruns.ended(number) for number in range(2)] == [0, 0], torchruns.said(0)[-3000:]
    said = torchruns.said(0)
    found = json.loads(
        said[said.index('{"runs"') if '{"runs"' in said else said.index("{\n") :].split("\n}")[0] + "\n}"
    )
    rows = {run["strategy"]: run for run in found["runs"]}
    assert {name: (run["status"], run["ranks"]) for name, run in rows.items()} == {
        "single": ("done", 1), "ddp": ("done", 2), "hogwild": ("refused", 2), "parameter_server": ("done", 1),
    }  # fmt: skip
    assert all(len(run["rounds"]) == 1 for run in rows.values() if run["status"] == "done")
    assert "shares memory and cannot run over several hosts (hosts: 2)" in rows["hogwild"]["reason"]
    assert (tmp_path / "all" / "report.html").is_file()
    assert '"runs"' not in torchruns.said(1)


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
