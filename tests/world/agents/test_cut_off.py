"""Hosts in network namespaces whose cable is cut or whose processes are frozen in the middle of a fit."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

import manyhands as mh
from manyhands.world.agents.lines import SILENT_SECONDS
from tests.agents_here import Here
from tests.breakable import toy

NUMBERS = itertools.count(
    os.getpid()
)  # the kernel takes a moment to take a namespace apart: each test has its own names


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.fixture
def spaces() -> Iterator[list[str]]:
    """Two namespaces on a bridge to which this process has a cable too."""
    if shutil.which("ip") is None:
        pytest.skip("network namespaces need iproute2 (the ip command)")
    number = next(NUMBERS) % 250
    bridge, made = f"mhb{number}", [f"mhc{number}{end}" for end in "ab"]
    try:
        try:
            ip("link", "add", bridge, "type", "bridge")
            ip("address", "add", f"10.78.{number}.1/24", "dev", bridge)
            ip("link", "set", bridge, "up")
            for side, space in enumerate(made, start=2):
                ip("netns", "add", space)
                names = Path("/etc/netns") / space  # what torch asks there for the names of addresses answers at once
                names.mkdir(parents=True)
                (names / "resolv.conf").touch()
                ip("link", "add", f"{space}o", "type", "veth", "peer", "name", f"{space}i", "netns", space)
                ip("link", "set", f"{space}o", "master", bridge, "up")
                ip("-n", space, "address", "add", f"10.78.{number}.{side}/24", "dev", f"{space}i")
                for device in ("lo", f"{space}i"):
                    ip("-n", space, "link", "set", device, "up")
        except subprocess.CalledProcessError as problem:
            pytest.skip(f"network namespaces may not be made here: {problem.stderr.strip()}")
        yield made
    finally:
        for space in made:
            subprocess.run(["ip", "netns", "delete", space], capture_output=True, check=False)
            shutil.rmtree(Path("/etc/netns") / space, ignore_errors=True)
        subprocess.run(["ip", "link", "delete", bridge], capture_output=True, check=False)


def cut(space: str, agent: psutil.Process) -> None:
    ip("link", "set", f"{space}o", "down")


def freeze(space: str, agent: psutil.Process) -> None:
    for process in [agent, *agent.children(recursive=True)]:
        process.send_signal(signal.SIGSTOP)


@pytest.mark.netns
@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("restarts", [0, 1], ids=["ends", "restarts"])
@pytest.mark.parametrize("strike", [cut, freeze])
def test_a_host_that_is_cut_off_or_frozen(
    strike: Callable[[str, psutil.Process], None], restarts: int, spaces: list[str], tmp_path: Path
) -> None:
    """The lost host is named within seconds; what runs on it ends by itself, for nobody can reach it to end it."""
    whole = mh.fit(toy(), "ddp:transport=gloo", ranks=2, progress=False)
    cluster = Here(before=tuple(("ip", "netns", "exec", space) for space in spaces))
    lost: list[psutil.Process] = []

    def at_step(step: Any) -> None:
        if step.step == 10 and not lost:
            agent = psutil.Process(cluster.agents[1].pid)
            lost.extend([agent, *agent.children(recursive=True)])
            strike(spaces[1], agent)

    def heal() -> None:
        """The cable is mended before the restart; a frozen host stays so, and another agent starts beside it."""
        ip("link", "set", f"{spaces[1]}o", "up")

    began = time.monotonic()
    options: dict[str, Any] = {"run_dir": tmp_path / "run", "checkpoint_every": 4, "max_restarts": restarts}
    try:
        if restarts:
            start = cluster.start

            def mended(places: Any, say: Any) -> Any:
                heal()
                return start(places, say)

            object.__setattr__(cluster, "start", mended)
            run = mh.fit(toy(), "ddp:transport=gloo", ranks=2, on_step=at_step, progress=False, on=cluster, **options)
            [fault] = run.faults
            assert fault["host"] == "right"
            assert fault["resumed_step"] in (
                4,
                8,
                12,
            )  # ranks go on while the blow falls, and while a checkpoint is written
            assert fault["message"].startswith(
                "host right is lost (not heard of for 10 s: it is frozen, or its network"
            )
            assert run.weights_sha256 == whole.weights_sha256
        else:
            with pytest.raises(mh.RankFailed, match=r"host right is lost \(not heard of for 10 s.*with rank 1 in step"):
                mh.fit(toy(), "ddp:transport=gloo", ranks=2, on_step=at_step, progress=False, on=cluster, **options)
        print(f"{strike.__name__}: {time.monotonic() - began:.0f} s in all")
        if strike is freeze:
            for process in lost:
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGCONT)  # thawed, it finds that nobody wants it any more
        _, left = psutil.wait_procs(lost, timeout=SILENT_SECONDS + 20)
        assert not left
    finally:
        for process in lost:
            if process.is_running():
                process.kill()
