"""A real Slurm of two nodes on this machine: Debian's own daemons, started in a folder and ended with the test."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.conftest import free_port

PROGRAMS = ("slurmctld", "slurmd", "srun", "munged")
NODES = ("n1", "n2")
CPUS = 4  # of each node, whatever the machine has


def missing() -> str | None:
    """Why there can be no Slurm here; where root and apt allow, what is missing is installed."""
    if os.geteuid() != 0:
        return "starting the daemons of Slurm needs root"
    if any(_program(name) is None for name in PROGRAMS):
        if shutil.which("apt-get") is None:
            return "Slurm is not installed and there is no apt-get to install it with"
        _install()
    gone = [name for name in PROGRAMS if _program(name) is None]
    return f"Slurm could not be installed: no {', '.join(gone)}" if gone else None


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def _install() -> None:
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    packages = ("install", "--yes", "--no-install-recommends", "slurm-wlm", "munge")
    for command in (["apt-get", "update"], ["apt-get", *packages]):
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(command, env=quiet, capture_output=True, timeout=240, check=False)


class SlurmCluster:
    """munged, slurmctld and a slurmd for each node. `environment` is what commands find it with."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}

    def up(self) -> None:
        for name in ("state", *NODES):
            (self.folder / name).mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        self._write_configuration()
        files = {"key-file": key, "socket": self.folder / "munge.socket"}
        files |= {f"{kind}-file": self.folder / f"munge.{kind}" for kind in ("pid", "log", "seed")}
        self._start("munged", "--foreground", "--force", *(f"--{name}={file}" for name, file in files.items()))
        self.wait_for(lambda: files["socket"].exists(), "munged")
        self._start("slurmctld", "-D")
        self.wait_for(lambda: "UP" in self.said("scontrol", "ping"), "slurmctld")
        for node in NODES:
            self.start_node(node)
        self.all_idle()

    def _write_configuration(self) -> None:
        host, ports = socket.gethostname().split(".")[0], list[int]()
        while len(ports) < 1 + len(NODES):
            ports += {free_port()} - {*ports}
        nodes = "\n".join(
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={CPUS} RealMemory=1000"
            for node, port in zip(NODES, ports[1:], strict=True)
        )
        Path(self.environment["SLURM_CONF"]).write_text(
            f"""ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={getpass.getuser()}
SlurmdUser={getpass.getuser()}
AuthType=auth/munge
AuthInfo=socket={self.folder}/munge.socket
StateSaveLocation={self.folder}/state
SlurmdSpoolDir={self.folder}/%n
SlurmctldPidFile={self.folder}/slurmctld.pid
SlurmdPidFile={self.folder}/%n.pid
SlurmctldLogFile={self.folder}/slurmctld.log
SlurmdLogFile={self.folder}/%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
SlurmdTimeout=10
KillWait=2
OverTimeLimit=0
JobRequeue=1
{nodes}
PartitionName=all Nodes={",".join(NODES)} Default=YES MaxTime=INFINITE State=UP
PartitionName=short Nodes={",".join(NODES)} MaxTime=1 State=UP
PartitionName=closed Nodes={NODES[0]} State=DOWN
"""
        )

    def _start(self, program: str, *words: str, name: str | None = None) -> None:
        path = _program(program)
        assert path is not None
        with open(self.folder / f"{name or program}.out", "ab") as said:
            self.daemons[name or program] = subprocess.Popen(
                [path, *words],
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )

    def start_node(self, node: str) -> None:
        if node in self.daemons:
            self.daemons[node].wait()  # it was killed
        self._start("slurmd", "-D", "-N", node, name=node)

    def said(self, *command: str, **environment: str) -> str:
        """What a command of Slurm prints."""
        known = {**os.environ, **self.environment, **environment}
        done = subprocess.run(command, env=known, capture_output=True, text=True, timeout=60, check=False)
        return done.stdout + done.stderr

    def states(self) -> dict[str, str]:
        words = self.said("sinfo", "--noheader", "--Node", "--partition=all", "--format=%N %t").split()
        return dict(zip(words[::2], words[1::2], strict=False))

    def all_idle(self) -> None:
        """Bring back what a test has broken, and wait until nothing runs."""
        for node in NODES:
            if self.daemons[node].poll() is not None:
                self.start_node(node)
        self.wait_for(lambda: set(self.states().values()) == {"idle"}, "an idle cluster")

    def jobs(self, states: str = "PENDING,RUNNING,COMPLETING,CONFIGURING") -> list[str]:
        """Number, state and reason of each."""
        return self.said("squeue", "--noheader", f"--states={states}", "--format=%i %T %r").splitlines()

    def work(self) -> list[psutil.Process]:
        """What runs on the nodes beside their daemons."""
        return [process for node in NODES for process in self.processes(node) if process.pid != self.daemons[node].pid]

    def processes(self, node: str) -> list[psutil.Process]:
        """Everything that runs on a node: its slurmd, the step daemons and what they started, outermost first."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.pid == self.daemons[node].pid or self._is_of(process, node):
                    found.append(process)
        return found

    def _is_of(self, process: psutil.Process, node: str) -> bool:
        """A step daemon has left its slurmd, and holds files of the node's folder; what it starts knows its node's name."""
        if process.name() == "slurmstepd":
            return any(str(self.folder / node) in item.path for item in process.open_files())
        around = process.environ()
        return around.get("SLURMD_NODENAME") == node and around.get("SLURM_CONF") == self.environment["SLURM_CONF"]

    def signal_node(self, node: str, number: signal.Signals) -> list[psutil.Process]:
        """Send a signal to everything of a node at once, as losing or freezing its machine does."""
        found = self.processes(node)
        for process in found:
            with suppress(psutil.Error):
                process.send_signal(number)
        return found

    def wait_for(self, true: Callable[[], bool], what: str, seconds: float = 60) -> None:
        limit = time.monotonic() + seconds
        while not true():
            if time.monotonic() > limit:
                logs = "\n".join(file.read_text()[-2000:] for file in self.folder.glob("*.log"))
                raise TimeoutError(f"{what} did not come within {seconds:g} s\n{logs}")
            time.sleep(0.1)

    def down(self) -> None:
        self.said("scancel", "--user", getpass.getuser())
        for node in NODES:
            self.signal_node(node, signal.SIGCONT)
            self.signal_node(node, signal.SIGKILL)
        for daemon in self.daemons.values():
            daemon.terminate()
        for daemon in self.daemons.values():
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


@contextmanager
def slurm_cluster(folder: Path) -> Iterator[SlurmCluster]:
    cluster = SlurmCluster(folder)
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()
