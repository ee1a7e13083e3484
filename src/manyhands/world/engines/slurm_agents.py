"""Agents that srun starts, from the queue to their end: what is waited for, why one is lost, and what is given back."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from ...errors import BadInput, RankFailed
from ..agents.tcp import TcpAgents
from .cluster import Place
from .slurm_commands import clean, job_state, last_line, node_state, tried

LOOK_SECONDS = 2.0  # between two looks at the queue
AWAY_SECONDS = 600.0  # that nodes which are down are waited for; a queue is waited for as long as it takes
LEAVE_SECONDS = 5.0  # in which agents whose caller has hung up end, and srun with them
END_SECONDS = 8.0  # in which srun ends them itself
WHY_SECONDS = 3.0  # in which Slurm makes up its mind how a job has ended
ALWAYS = ("--cpu-bind=none", "--export=ALL", "--mpi=none", "--input=none", "--kill-on-bad-exit=0")
NEVER = re.compile(r"Partition(Time|Node)Limit|BadConstraints|Invalid(Account|QOS)|\w*Max\w+PerJob\w*")
AWAY = re.compile(r"ReqNodeNotAvail|.*DOWN.*|PartitionDown|PartitionInactive")
IN_WORDS = {
    "Resources": "for nodes that are busy",
    "Priority": "because other jobs come first",
    "PartitionDown": "because the partition is down",
    "BeginTime": "for the time it was asked to begin at",
}
ENDED = {
    "TIMEOUT": "the time limit of Slurm job {job} has passed",
    "CANCELLED": "Slurm job {job} was cancelled",
    "PREEMPTED": "Slurm job {job} was preempted",
    "NODE_FAIL": "{node} of Slurm job {job} failed",
    "OUT_OF_MEMORY": "Slurm job {job} ran out of memory",
    "DEADLINE": "Slurm job {job} has reached its deadline",
    "BOOT_FAIL": "a node of Slurm job {job} did not boot",
}
BY_REASON = {"TimeLimit": "TIMEOUT", "NodeDown": "NODE_FAIL"}


class NodeUnreachable(RankFailed):
    """Slurm gave us a node that it then could not start anything on."""


def start_agents(places: list[Place], request: list[str], say: Callable[[str], None], inside: bool) -> SlurmAgents:
    """One on every node. Slurm takes minutes to notice that a node is gone: until then it is asked for others."""
    until, avoid = time.monotonic() + AWAY_SECONDS, ""
    while True:
        try:
            return SlurmAgents(places, [*request, *([f"--exclude={avoid}"] if avoid else [])], say, inside)
        except NodeUnreachable as failure:
            if inside or time.monotonic() > until:
                raise
            say(f"{failure}; asking for other nodes")
            avoid = _to_avoid(request, failure.host)


def _to_avoid(request: list[str], host: str | None) -> str:
    """The node itself where Slurm could do without it; else it is waited for."""
    without = f"--exclude={host}"
    if host and not tried("srun", "--test-only", *request, without, "true")[0]:
        return host
    time.sleep(LOOK_SECONDS)
    return ""


class SlurmAgents(TcpAgents):
    def __init__(self, places: Sequence[Place], request: Sequence[str], say: Callable[[str], None], inside: bool):
        self._request, self._say, self._inside = request, say, inside
        self._name = f"manyhands-{secrets.token_hex(3)}"  # of the job, or of the step in it
        self._srun: subprocess.Popen[bytes] | None = None
        self._said: deque[str] = deque(maxlen=50)  # by srun itself
        self._looked, self._waits_for = time.monotonic(), ""
        self._away_since: float | None = None
        self._answered = False
        folder = Path.cwd() / f".{self._name}"
        if not os.access(folder.parent, os.W_OK):
            raise BadInput(
                f"{folder.parent} cannot be written, and agents find us through a folder in it; "
                "start in a folder that all nodes see"
            )
        super().__init__(places, folder, self._begin, self._look, self._finish)
        self._answered = True

    def _begin(self, command: list[str]) -> None:
        self._srun = subprocess.Popen(
            ["srun", f"--job-name={self._name}", *ALWAYS, *self._request, *command],
            env=clean(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is ours to handle
        )
        assert self._srun.stdout is not None
        self._reader = threading.Thread(
            target=self._read, args=(self._srun.stdout,), name="manyhands-srun", daemon=True
        )
        self._reader.start()

    def _read(self, output: IO[bytes]) -> None:
        """srun's own words are kept, to tell why something ended; what ranks print goes where it would on this host."""
        with output:
            for line in output:
                text = line.decode(errors="replace").rstrip("\n")
                if re.match(r"srun: |slurmstepd|manyhands: the agent", text):
                    self._said.append(text)
                else:
                    print(text, file=sys.stderr, flush=True)

    # ------------------------------------------------------------ until all have answered

    def _look(self) -> None:
        """Raise where they will never come; say what is waited for."""
        assert self._srun is not None
        if self._srun.poll() is not None:
            self._reader.join(1.0)
            raise self._not_started()
        failed = next(
            (text for text in self._said if re.match(r"srun: error: \S+: tasks? .*(Exited|Killed|Term)", text)), ""
        )
        if failed:
            raise self._not_started()
        if time.monotonic() - self._looked > LOOK_SECONDS and not self._inside:
            self._look_at_queue()
            self._looked = time.monotonic()

    def _look_at_queue(self) -> None:
        job, state, reason = job_state(self._which)
        if state != "PENDING" or reason == "None":
            return
        if NEVER.match(reason):
            raise BadInput(f"Slurm would never start this job: {reason} (srun {' '.join(self._request)})")
        if AWAY.match(reason):
            self._away_since = self._away_since or time.monotonic()
            if time.monotonic() - self._away_since > AWAY_SECONDS:
                raise RankFailed(f"Slurm job {job} waited {AWAY_SECONDS / 60:.0f} minutes {_in_words(reason)}")
        else:
            self._away_since = None
        if reason != self._waits_for:
            self._waits_for = reason
            self._say(f"Slurm job {job} waits in the queue {_in_words(reason)}; Ctrl-C cancels it")

    def _not_started(self) -> Exception:
        """What srun's words mean where it ended before all agents had answered."""
        said = "\n".join(self._said)
        lost = re.search(r"failed on node (\S+): (.*)", said)
        if lost:
            return NodeUnreachable(f"Slurm could not start anything on node {lost[1]} ({lost[2]})", host=lost[1])
        refused = re.findall(
            r"Unable to (?:allocate resources|create step[^:]*): (.*)|error: (Only allocated .*)", said
        )
        cancelled = re.search(r"[Jj]ob.* (revoked|cancelled)|CANCELLED", said)
        if cancelled:
            return RankFailed(f"the Slurm job was cancelled before its agents had started ({last_line(said)})")
        if refused:
            return BadInput(f"Slurm refuses the request: {''.join(refused[-1])} (srun {' '.join(self._request)})")
        agent = re.search(r"manyhands: (the agent on .*)", said)
        if agent:
            return BadInput(f"{agent[1]}; start in a folder that all nodes see under the same name")
        return RankFailed(f"srun ended before its agents had started: {last_line(said)}")

    # ------------------------------------------------------------ how it ends

    def why(self, agent: int) -> str | None:
        """As far as Slurm knows: it takes minutes to notice that a node is gone."""
        host, until = self.places[agent].host, time.monotonic() + WHY_SECONDS
        with suppress(BadInput):
            while True:
                job, state, reason = job_state(self._which)
                lost, node = node_state(host) if state else (False, "")  # else it does not answer
                if lost:
                    return f"Slurm says that node {host} is {node}"
                ended = ENDED.get(self._cancelled() or BY_REASON.get(reason, state))
                if ended:
                    failed = re.search(r"Node failure on (\S+)", "\n".join(self._said))
                    return ended.format(job=job, node=f"node {failed[1]}" if failed else "a node")
                if state != "COMPLETING" or time.monotonic() > until:  # how it will have ended is said afterwards
                    break
                time.sleep(0.2)
        tasks = [text for text in self._said if re.match(rf"srun: error: {re.escape(host)}: task", text)]
        return f"its agent ended: {tasks[-1].rpartition(': ')[2]}" if tasks else None

    @property
    def _which(self) -> str:
        """How squeue finds our job."""
        return f"--jobs={os.environ['SLURM_JOB_ID']}" if self._inside else f"--name={self._name}"

    def _cancelled(self) -> str | None:
        """The end that srun reports, as the state of a job is called."""
        found = re.findall(r"CANCELLED AT \S+(?: DUE TO ([A-Z ]+))?", "\n".join(self._said))
        causes = {"TIME LIMIT": "TIMEOUT", "NODE FAILURE": "NODE_FAIL", "PREEMPTION": "PREEMPTED"}
        return causes.get(found[-1].strip(), "CANCELLED") if found else None

    def _finish(self) -> None:
        """Give everything back. A job or step of ours that does not end by itself is cancelled; the job around us is not ours."""
        srun = self._srun
        if srun is None:
            return
        if self._answered and _ends(srun, LEAVE_SECONDS):
            return
        srun.terminate()  # cancels the job where it is ours, else the step
        if not _ends(srun, END_SECONDS):
            with suppress(BadInput):
                self._cancel()
            srun.kill()
            srun.wait()

    def _cancel(self) -> None:
        if not self._inside:
            tried("scancel", f"--name={self._name}")
            return
        _, said = tried("squeue", "--noheader", "--steps", f"--jobs={os.environ['SLURM_JOB_ID']}", "--format=%i|%j")
        for line in said.splitlines():
            step, _, name = line.partition("|")
            if name == self._name:
                tried("scancel", step)


def _in_words(reason: str) -> str:
    """What a job waits for."""
    if reason in IN_WORDS:
        return IN_WORDS[reason]
    named = re.search(r"UnavailableNodes:(\S+)", reason)
    away = "for nodes that are down or drained" + (f" ({named[1]})" if named else "")
    return away if AWAY.match(reason) else f"({reason})"


def _ends(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True
