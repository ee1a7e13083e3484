"""What Slurm's own commands say, each asked with a time limit: the nodes of a partition, the state of a job or a node."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import BadInput

SECONDS = 4.0  # for one answer; commands whose controller is down go on asking for minutes
AWAY = ("down", "drain", "drng", "fail", "maint", "not_responding", "reboot", "unknown", "power", "future", "planned")


@dataclass(frozen=True)
class Node:
    name: str
    cpus: int
    away: bool  # takes no work now: down, drained, in maintenance
    partition: str
    default: bool  # of the default partition


def ask(*command: str) -> str:
    """What a command prints; BadInput where there is no Slurm, or it does not answer."""
    code, said = tried(*command)
    if code:
        raise BadInput(f"Slurm does not answer: {command[0]}: {last_line(said)}; is its controller up (scontrol ping)?")
    return said


def tried(*command: str) -> tuple[int, str]:
    """How a command ended and what it printed, errors included."""
    if shutil.which(command[0]) is None:
        raise BadInput(
            f"there is no Slurm on this machine ({command[0]} was not found); "
            "start on a login node of the cluster, or leave out --on slurm"
        )
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=SECONDS, check=False, env=clean()
        )
    except subprocess.TimeoutExpired as late:
        heard = late.stderr or b""
        text = heard.decode(errors="replace") if isinstance(heard, bytes) else heard
        return 1, f"{text}\nno answer within {SECONDS:.0f} s" if not text.strip() else text
    return done.returncode, done.stdout + done.stderr


def last_line(said: str) -> str:
    """The last line of what a command printed, without its own name."""
    lines = [line.strip() for line in said.splitlines() if line.strip()] or ["no word"]
    return re.sub(r"^(\w+: )?(error: |fatal: )?", "", lines[-1])


def nodes_of(partition: str | None) -> list[Node]:
    """The nodes of a partition, or of the default one; BadInput where there is none of that name."""
    rows = [line.split("|") for line in ask("sinfo", "--noheader", "--Node", "--format=%N|%c|%T|%P").splitlines()]
    nodes = [
        Node(name, int(cpus), _away(state), where.rstrip("*"), where.endswith("*")) for name, cpus, state, where in rows
    ]
    found = [node for node in nodes if (node.partition == partition if partition else node.default)]
    if not found:
        known = ", ".join(sorted({node.partition for node in nodes})) or "none"
        if partition:
            raise BadInput(f'Slurm has no partition "{partition}"; there are: {known}')
        raise BadInput(f"Slurm has no default partition; say which one (--on slurm:partition=...): {known}")
    return found


def _away(state: str) -> bool:
    return state.endswith("*") or any(word in state for word in AWAY)


def hosts_in(names: str) -> list[str]:
    """`n[1-3]` as a list."""
    return ask("scontrol", "show", "hostnames", names).split()


def job_state(*which: str) -> tuple[str, str, str]:
    """(id, state, reason) of a job, found by `--jobs=40` or `--name=...`; empty where Slurm knows none or does not answer."""
    code, said = tried("squeue", "--noheader", "--states=all", "--format=%i|%T|%r", *which)
    lines = said.splitlines()
    parts = lines[-1].split("|") if lines and not code else []
    return (parts[0], parts[1], parts[2]) if len(parts) == 3 else ("", "", "")


def node_state(host: str) -> tuple[bool, str]:
    """Whether Slurm takes a node for lost, and what it says of it."""
    code, said = tried("sinfo", "--noheader", "--Node", f"--nodes={host}", "--format=%T|%E")
    state, _, reason = (said.splitlines() or [""])[0].partition("|")
    lost = not code and (state.endswith("*") or state.startswith(("down", "fail", "unknown")))
    return lost, f"{state.rstrip('*')}: {reason}" if reason not in ("", "none") else state.rstrip("*")


def started_once() -> None:
    """Refuse to be one of several: each would start ranks of its own."""
    tasks = int(os.environ.get("SLURM_STEP_NUM_TASKS", "1"))
    if "SLURM_STEP_ID" in os.environ and tasks > 1:
        raise BadInput(
            f"srun has started this program {tasks} times (SLURM_STEP_NUM_TASKS), but with --on slurm it starts the "
            "ranks itself; start it once: leave out srun, or use srun --ntasks 1"
        )


# What describes the tasks of the job or step around us, which srun would take for wishes about ours.
_SHAPE = re.compile(
    r"(SLURM|SRUN)_(N?TASKS(_.*)?|NPROCS|NTASKS_PER.*|CPUS?_PER.*|CPU_BIND.*|MEM_BIND.*|DISTRIBUTION|HINT|NNODES|EXACT|"
    r"EXCLUSIVE|EXPORT_ENV|STEP.*|PROCID|LOCALID|GTIDS|TASK_PID|OVERLAP|WHOLE|THREADS?_.*|LABELIO|KILL_BAD_EXIT|"
    r"STD\w+MODE|WAIT|MPI_TYPE|PTY.*|MULTI_PROG|OPEN_MODE|REMOTE_CWD|UNBUFFEREDIO|JOB_NAME|IMMEDIATE)"
)


def clean() -> dict[str, str]:
    """The environment for Slurm's commands: who we are and which job we are in, not how its tasks were laid out."""
    return {name: value for name, value in os.environ.items() if not _SHAPE.fullmatch(name)}


def option(words: Sequence[str], short: str, *names: str) -> bool:
    """Whether one of these options is among words of a command line."""
    return any(word.split("=")[0] in names or re.fullmatch(rf"{short}\S*", word) for word in words)
