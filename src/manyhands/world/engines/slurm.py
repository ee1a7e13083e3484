"""Ranks on the nodes of a Slurm cluster: `srun` starts an agent on each, inside the job we stand in or in one of its own.

login node          srun asks for nodes, waits in the queue, and gives them back at the end
inside a job        the job's nodes are used; the job itself is left alone
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...errors import BadInput
from .cluster import Agents, Cluster, Place, evenly, packed
from .slurm_agents import start_agents
from .slurm_commands import Node, hosts_in, job_state, last_line, nodes_of, option, started_once, tried

OURS = {
    "partition": ("-p", "--partition"),
    "nodes": ("-N", "--nodes"),
    "time": ("-t", "--time"),
    "ranks": ("-n", "--ntasks", "--ntasks-per-node"),
}  # what has a name of its own


@dataclass(frozen=True)
class Slurm(Cluster):
    """What is asked of Slurm; `extra` are further options of srun, such as `--gres=gpu:4`."""

    partition: str | None = None  # default: Slurm's own
    nodes: int | None = None  # default: the fewest that have a CPU for each process; inside a job, all of its nodes
    time: str | None = None  # as srun writes it: minutes, or hours:minutes:seconds
    extra: tuple[str, ...] | list[str] | str = ()

    name = "slurm"

    def __post_init__(self) -> None:
        words = shlex.split(self.extra) if isinstance(self.extra, str) else self.extra
        object.__setattr__(self, "extra", tuple(words))
        if self.nodes is not None and (isinstance(self.nodes, bool) or self.nodes < 1):
            raise BadInput(f"slurm: nodes must be 1 or more (found {self.nodes!r})")
        for ours, names in OURS.items():
            if option(self.extra, *names):
                raise BadInput(f"slurm: {names[-1]} does not belong in extra; use {ours}")

    # ------------------------------------------------------------ where processes would run

    def plan(self, processes: int) -> list[Place]:
        started_once()
        return self._of_the_job() if inside() else self._of_the_partition(processes)

    def _of_the_job(self) -> list[Place]:
        """The nodes of the job we are in, with their CPUs."""
        number, own = os.environ["SLURM_JOB_ID"], os.environ.get("SLURM_JOB_PARTITION")
        if self.partition and own and self.partition != own:
            raise BadInput(
                f"this runs inside Slurm job {number} of partition {own}, whose nodes are used; "
                f"leave out partition={self.partition}"
            )
        if job_state(f"--jobs={number}")[1] not in ("RUNNING", "CONFIGURING", "COMPLETING"):
            raise BadInput(
                f"SLURM_JOB_ID says that this runs inside Slurm job {number}, but there is no such job now; "
                "unset SLURM_JOB_ID to ask for nodes"
            )
        hosts = hosts_in(os.environ["SLURM_JOB_NODELIST"])
        wanted = self.nodes or len(hosts)
        if wanted > len(hosts):
            raise BadInput(
                f"{wanted} nodes were asked for but Slurm job {number} has {len(hosts)}; use nodes={len(hosts)}"
            )
        cpus = counts(os.environ.get("SLURM_JOB_CPUS_PER_NODE", "1"), len(hosts))
        return [Place(host, count) for host, count in zip(hosts[:wanted], cpus, strict=False)]

    def _of_the_partition(self, processes: int) -> list[Place]:
        """As many nodes as are needed; which ones is Slurm's to say."""
        nodes = nodes_of(self.partition or os.environ.get("SLURM_PARTITION"))
        name, cpus = nodes[0].partition, sorted((node.cpus for node in nodes), reverse=True)
        here = [node.cpus for node in nodes if not node.away]  # the others may come back, if it takes them
        count = min(self.nodes, processes) if self.nodes else fewest(processes, here) or fewest(processes, cpus)
        if self.nodes and self.nodes > len(nodes):
            raise BadInput(f"{self.nodes} nodes were asked for but partition {name} has {len(nodes)}")
        most = count * cpus[count - 1] if count else max(cpu * number for number, cpu in enumerate(cpus, start=1))
        if count is None or processes > most:
            asked = f"{self.nodes or len(nodes)} node{'s' * ((self.nodes or len(nodes)) != 1)}"
            raise BadInput(
                f"{processes} processes were asked for but partition {name} has room for {most} "
                f"({asked}, a CPU for each process); "
                "use fewer ranks"
            )
        places = [Place(f"node {index + 1}", -(-processes // count)) for index in range(count)]
        self._try(places, nodes)
        return places

    def _try(self, places: Sequence[Place], nodes: list[Node]) -> None:
        """Let Slurm look at the request. It also says no where nodes are away that may come back: those are waited for."""
        code, said = tried("srun", "--test-only", *self.request(places), "true")
        if code and not any(node.away for node in nodes):
            raise BadInput(f"Slurm refuses the request: {reason_in(said)} (srun {' '.join(self.request(places))})")

    def spread(self, processes: int, room: Sequence[Place]) -> list[Place]:
        """Evenly over nodes that were asked for by number, or that a job has; else the fewest."""
        return evenly(processes, room) if self.nodes or inside() else packed(processes, room)

    # ------------------------------------------------------------ the agents

    def start(self, places: Sequence[Place], say: Callable[[str], None]) -> Agents:
        return start_agents(list(places), self.request(places), say, inside())

    def request(self, places: Sequence[Place]) -> list[str]:
        """What srun is asked for: one task on each node, with a CPU for each of its processes."""
        words = [f"--nodes={len(places)}", f"--ntasks={len(places)}", "--ntasks-per-node=1"]
        if inside():
            words += ["--overlap"]  # with the program that calls, which holds a CPU of the first node
        else:
            words += [f"--cpus-per-task={max(place.processes for place in places)}"]
            words += [f"--partition={self.partition}"] if self.partition else []
        words += [f"--time={self.time}"] if self.time else []
        return [*words, *self.extra]

    @property
    def gpus(self) -> bool:
        """Whether GPUs were asked for, by us or by the job we are in."""
        asked = any("gpu" in word for word in self.extra)
        return asked or (inside() and any(os.environ.get(name) for name in ("SLURM_JOB_GPUS", "SLURM_GPUS_ON_NODE")))


def inside() -> bool:
    """Whether this program runs in a job of Slurm's."""
    return "SLURM_JOB_ID" in os.environ and "SLURM_JOB_NODELIST" in os.environ


def counts(text: str, hosts: int) -> list[int]:
    """`4(x2),2`: CPUs of each node of a job."""
    found: list[int] = []
    for number, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        found += [int(number)] * int(times or 1)
    return (found + found[-1:] * hosts)[:hosts]


def fewest(processes: int, cpus: Sequence[int]) -> int | None:
    """How many nodes hold the processes, as many on each as on the next; None where all of them do not."""
    largest = sorted(cpus, reverse=True)
    return next((count for count in range(1, len(cpus) + 1) if largest[count - 1] * count >= processes), None)


def reason_in(said: str) -> str:
    """Why srun says no: its error, or what the controller answered."""
    errors = re.findall(r"(?:error: |srun: (?=unrecognized|invalid))(.*)", said)
    answered = re.findall(r"allocation failure: (?!No error)(.*)", said)
    return str((answered or errors or [last_line(said)])[-1]).strip()
