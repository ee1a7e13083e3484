"""Ranks on the nodes of a Ray cluster: a placement group reserves a bundle for each, an actor on every node starts its own.

fit(task, "ddp", ranks=8, on="ray")                         a cluster that this machine belongs to
fit(task, "ddp", ranks=8, on=mh.Ray("ray://head:10001"))    one that it reaches as a client
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any

from ...errors import BadInput, ManyhandsError, RankFailed
from ..agents.actors import LOST_SECONDS, NodePlace, RayAgents, free_by_node, lost
from .cluster import Agents, Cluster, Place
from .ray_connection import connected

MOMENT = 2.0  # in which Ray reserves what is free
PATIENCE = 60.0  # seconds between two words about what is waited for


@dataclass(frozen=True)
class Ray(Cluster):
    """A Ray cluster: `auto` finds the one this machine belongs to, else host:port, or ray://host:port from outside."""

    address: str = "auto"
    cpus_per_rank: int = 1
    gpus_per_rank: int = 0

    name = "ray"

    def __post_init__(self) -> None:
        for name, least in (("cpus_per_rank", 1), ("gpus_per_rank", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise BadInput(f"ray: {name} must be a whole number of at least {least} (found {value!r})")
        if not isinstance(self.address, str) or not self.address:
            raise BadInput(f"ray: address must be auto, host:port or ray://host:port (found {self.address!r})")

    def connected(self) -> AbstractContextManager[None]:
        return connected(self.address)

    @property
    def gpus(self) -> bool:
        return self.gpus_per_rank > 0

    # ------------------------------------------------------------ where there is room

    @property
    def _bundle(self) -> dict[str, float]:
        wanted = {"CPU": self.cpus_per_rank, "GPU": self.gpus_per_rank}
        return {name: float(count) for name, count in wanted.items() if count}

    def _each(self) -> str:
        return " and ".join(f"{count:g} {name}{'s' * (count != 1)}" for name, count in self._bundle.items())

    def _room(self, resources: Callable[[dict[str, Any]], dict[str, float]]) -> list[NodePlace]:
        """How many processes each node could hold, the roomiest first, by what `resources` says it has."""
        import ray

        recent = time.monotonic() - LOST_SECONDS
        nodes = [node for node in ray.nodes() if node["Alive"] and lost.get(node["NodeID"], recent) <= recent]
        hosts = [node["NodeManagerHostname"] for node in nodes]
        places = []
        for node, host in zip(nodes, hosts, strict=True):
            has = resources(node)
            count = min(int(has.get(name, 0) // needed) for name, needed in self._bundle.items())
            name = host if hosts.count(host) == 1 else f"{host}-{node['NodeID'][:4]}"
            places.append(NodePlace(name, count, node["NodeID"], node["NodeManagerAddress"]))
        return sorted(places, key=lambda place: -place.processes)

    def _free(self) -> list[NodePlace]:
        free = free_by_node()
        return self._room(lambda node: free.get(node["NodeID"], {}))

    def plan(self, processes: int) -> list[Place]:
        """On what is free now; where others hold a part of it, on what may come free."""
        room = self._free()
        if _count(room) < processes:
            room = self._room(lambda node: node["Resources"])
        if _count(room) < processes:
            there = ", ".join(f"{place.host}: {place.processes}" for place in room) or "no node is alive"
            raise BadInput(
                f"ray has room for {_count(room)} processes of {self._each()} each ({there}), but {processes} are "
                "needed; use fewer ranks or add nodes"
            )
        places, left = [], processes
        for place in room:
            if taken := min(left, place.processes):
                places.append(NodePlace(place.host, taken, place.node, place.address))
                left -= taken
        return list(places)

    def room(self) -> int:
        return _count(self._free())

    # ------------------------------------------------------------ agents

    def start(self, places: Sequence[Place], say: Callable[[str], None]) -> Agents:
        from ray.util.placement_group import placement_group, remove_placement_group

        nodes = [place for place in places if isinstance(place, NodePlace)]
        each = [place for place in nodes for _ in range(place.processes)]
        group = placement_group(
            [self._bundle] * len(each),
            strategy="PACK",
            bundle_label_selector=[{"ray.io/node-id": place.node} for place in each],
        )
        try:
            self._wait_for(group, nodes, say)
        except BaseException as problem:
            with suppress(Exception):
                remove_placement_group(group)
            if isinstance(problem, Exception) and not isinstance(problem, ManyhandsError):
                raise RankFailed(f"the Ray cluster went away before it had made room ({problem})") from None
            raise
        return RayAgents(nodes, group, self.cpus_per_rank, self.gpus_per_rank)

    def _wait_for(self, group: Any, places: Sequence[NodePlace], say: Callable[[str], None]) -> None:
        patience = MOMENT
        while not group.wait(patience):
            wanted = ", ".join(f"{place.processes} on {place.host}" for place in places)
            free = sum(
                min(there.processes, place.processes)
                for place in places
                for there in self._free()
                if there.node == place.node
            )
            say(
                f"ray: waiting for room for {_count(places)} processes of {self._each()} each ({wanted}): "
                f"others hold it, {free} could start now; Ctrl-C ends the wait"
            )
            patience = PATIENCE


def _count(places: Sequence[Place]) -> int:
    return sum(place.processes for place in places)
