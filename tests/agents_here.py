"""A cluster of hosts that are processes of this machine: what Slurm and Ray have in common, without either."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from manyhands.errors import RankFailed
from manyhands.world.agents.tcp import TcpAgents
from manyhands.world.engines.cluster import Agents, Cluster, Place, evenly


@dataclass(frozen=True)
class Here(Cluster):
    """Each host is an agent of its own; `before` are words that put it somewhere (a network namespace)."""

    hosts: tuple[str, ...] = ("left", "right")
    each: int = 4  # processes that a host has room for
    before: tuple[tuple[str, ...], ...] = ()
    environment: tuple[dict[str, str], ...] = ()
    agents: list[subprocess.Popen[Any]] = field(default_factory=list, compare=False)  # of the last start

    name = "here"

    def plan(self, processes: int) -> list[Place]:
        return evenly(processes, [Place(host, self.each) for host in self.hosts])

    def spread(self, processes: int, room: Sequence[Place]) -> list[Place]:
        return evenly(processes, room)

    def start(self, places: Sequence[Place], say: Callable[[str], None]) -> Agents:
        parent = Path(tempfile.mkdtemp(prefix="manyhands-test-"))
        self.agents.clear()

        def begin(command: list[str]) -> None:
            for index, place in enumerate(places):
                words = self.before[index] if self.before else ()
                own = self.environment[index] if self.environment else {}
                place_of = {"MANYHANDS_PLACE": str(index), "MANYHANDS_HOST": place.host}
                self.agents.append(subprocess.Popen([*words, *command], env={**os.environ, **place_of, **own}))

        def check() -> None:
            if any(agent.poll() is not None for agent in self.agents):
                raise RankFailed("an agent ended before it was there")

        def end() -> None:
            for agent in self.agents:
                try:
                    agent.wait(timeout=10)
                except subprocess.TimeoutExpired:
                    agent.kill()
                    agent.wait()
            shutil.rmtree(parent, ignore_errors=True)

        return TcpAgents(places, parent / "agents", begin, check, end)
