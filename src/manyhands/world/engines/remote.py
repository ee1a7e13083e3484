"""Ranks on other hosts: on each an agent starts its own, and the caller hears, watches and ends them from where it is."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ...errors import BadInput, RankFailed
from ...model import torch_internals
from ..agents.orders import LaunchOrders
from ..agents.remote_launch import RemoteLaunch
from ..devices import resolve_devices
from ..health.stalls import StallFinder
from ..launch.arithmetic import arithmetic
from ..launch.by_value import pack
from ..shared_memory import close_quietly
from .cluster import Agents, Cluster, Place
from .engine import Body, Engine, Forgive, Ready, Shared
from .local import on_rank

PASSED_ON = ("MANYHANDS_", "GLOO_", "NCCL_", "TORCH", "HF_", "TOKENIZERS_", "PYTHONHASHSEED")  # of the environment
STORE_SECONDS = 10.0
ROOM_SECONDS = 5.0  # between two looks for more room


class Remote(Engine):
    """Reserves hosts when they are first needed and keeps them, with warm agents, until it is closed."""

    elsewhere = True

    def __init__(self, cluster: Cluster, say: Callable[[str], None] | None = None):
        self.cluster, self._say = cluster, say or _say_on_stderr
        self.agents: Agents | None = None
        self.places: list[Place] = []
        self._reserved = 0

    # ------------------------------------------------------------ before anything starts

    def reserve(self, processes: int) -> None:
        """Several fits will come, of which the largest has so many processes."""
        self._reserved = max(self._reserved, processes)

    def check(self, processes: int, name: str, survives: bool) -> None:
        if survives:
            raise BadInput(
                f"on_death=continue needs ranks on this host (found --on {self.cluster.name}); leave out --on"
            )
        if self.agents is None:
            room = self.cluster.plan(max(processes, self._reserved))
        else:
            room = self.agents.places
        self.places = self.cluster.spread(processes, room)
        self.hosts = sum(place.processes > 0 for place in self.places)
        self._room = room

    def room(self, processes: int) -> int:
        """All that were reserved, while no host is lost; else what the cluster has left."""
        found = self.cluster.room() if self.agents is None else None
        if found is None:
            return processes
        self._reserved = min(self._reserved, found)
        return min(processes, found)

    def devices(self, spec: str, count: int) -> list[torch.device]:
        """The login node may have no GPU where the ranks have: what the engine was asked for counts."""
        if spec == "auto":
            spec = "cuda" if self.cluster.gpus else "cpu"
        if "cuda" not in spec:
            return resolve_devices(spec, count)
        here = [index for place in self.places for index in range(place.processes)]  # each device's place on its host
        here = here if len(here) == count else list(range(count))  # one process holds all of them
        chosen = [part.strip() for part in spec.split(",")]
        return [
            torch.device("cuda", index) if spec == "cuda" else torch.device(chosen[index % len(chosen)])
            for index in here
        ]

    def threads(self, ranks: int) -> int:
        agents, first, shares = self._open(), 0, []
        for cores, place in zip(agents.cores, self.places, strict=True):
            if first < ranks and place.processes:
                shares.append(cores // (min(place.processes, ranks - first) if self.hosts > 1 else ranks))
            first += place.processes
        return max(1, min(shares))

    # ------------------------------------------------------------ the agents

    def _open(self) -> Agents:
        """The agents; started when they are first needed, or again where one was lost."""
        if self.agents is None:
            self.agents = self.cluster.start(self._room, self._say)
            counts = [place.processes for place in self.places]
            hosts = [place.host for place in self.agents.places]  # as they call themselves
            self.places = [Place(host, count) for host, count in zip(hosts, counts, strict=True)]
        return self.agents

    def close(self) -> None:
        agents, self.agents = self.agents, None
        if agents is not None:
            agents.close()

    def run(self, body: Body, shared: Shared, ready: Ready, forgive: Forgive, time_limit: float | None) -> Any:
        world = self.world
        if self.agents is None:  # a host was lost: what is there now?
            self.check(world.processes, "", False)
        agents = self._open()
        by_host = self._by_host()
        with agents.packing():
            packed = pack(partial(on_rank, body=body, world=world, by_host=by_host))
        try:
            carried = agents.carry(packed)
        finally:
            close_quietly(packed)
        launched = RemoteLaunch(agents, self.places, world.processes, world.ranks)
        stalls = StallFinder(
            world.stall_seconds,
            used=lambda _, rank: launched.used.get(rank, (0.0, False))[0],
            stopped=lambda _, rank: launched.used.get(rank, (0.0, False))[1],
        )
        self._looked, self._grows = time.monotonic(), False
        whole = False
        try:
            ready()
            launched.start(self._orders(carried, shared, agents))
            watch = lambda board: stalls(board) or self._more_room(agents)  # noqa: E731
            results = launched.wait(self._hear, self.ask, watch, None, time_limit)
            whole = True
        finally:
            if not launched.end() or (not whole and (launched.lost or self._grows)):
                self.close()  # another attempt starts others
        return next((result for result in results if result is not None), None)

    def _more_room(self, agents: Agents) -> RankFailed | None:
        """Ends a launch that lacks ranks, where the cluster could hold more by now."""
        if self.more is None or time.monotonic() - self._looked < ROOM_SECONDS:
            return None
        self._looked = time.monotonic()
        self._grows = self.more((self.cluster.room() or 0) + sum(place.processes for place in agents.places))
        return RankFailed("there is room for more ranks", kind="room", traceback="-") if self._grows else None

    def _hear(self, _: int, kind: str, content: Any) -> None:
        self.tell(kind, time.monotonic() if kind == "started" else content)  # the rank's clock is another

    def _by_host(self) -> list[list[int]]:
        found, first = [], 0
        for place in self.places:
            found.append(list(range(first, first + place.processes)))
            first += place.processes
        return [indexes for indexes in found if indexes]

    def _orders(self, carried: Any, shared: Shared, agents: Agents) -> dict[int, LaunchOrders]:
        """What each agent with processes of this launch is told."""
        world, first = self.world, 0
        store = (agents.addresses[self._leader()], self._store_port(agents)) if self.hosts > 1 else None
        orders = {}
        for agent, place in enumerate(self.places):
            if place.processes:
                orders[agent] = LaunchOrders(
                    body=carried,
                    processes=place.processes,
                    ranks=world.ranks,
                    first=first,
                    of=world.processes,
                    address=agents.addresses[agent],
                    store=store,
                    threads=world.threads,
                    shared=shared,
                    preload=world.preload,
                    environment={name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)},
                    folder=os.getcwd(),
                    path=tuple(sys.path),
                    arithmetic=arithmetic(),
                    without=torch_internals.missing(),
                )
            first += place.processes
        return orders

    def _leader(self) -> int:
        """The agent on whose host the first process starts."""
        return next(agent for agent, place in enumerate(self.places) if place.processes)

    def _store_port(self, agents: Agents) -> int:
        """Where processes of several hosts meet: a store that the first agent keeps, a new one for each launch."""
        leader = self._leader()
        agents.send(leader, "store")
        until = time.monotonic() + STORE_SECONDS
        while time.monotonic() < until:
            for agent, kind, content in agents.heard(0.2):
                if kind == "store":
                    return int(content)
                if kind == "gone":
                    raise self._lost(agent, agents.why(agent) or "its agent has ended")
        raise self._lost(leader, f"not heard of for {STORE_SECONDS:.0f} s")

    def _lost(self, agent: int, why: str) -> RankFailed:
        self.close()
        host = self.places[agent].host
        return RankFailed(f"host {host} is lost ({why})", kind="died", host=host)


def _say_on_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
