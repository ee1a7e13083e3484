"""Agents that are Ray actors, one per node: the caller reaches them by calls alone, from outside the cluster too.

    caller -> actor    hear(number, kind, content) numbered, for calls may overtake each other
    caller <- actor    listen(seconds)             returns as soon as the agent has said something; then it is called again

What is launched goes through Ray's object store. An actor ends with the caller's connection, and with it all it started.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from itertools import chain, count, pairwise
from typing import Any

from ...errors import BadInput, RankFailed
from ..engines.cluster import Agents, Place
from .own_modules import by_value, digest_of, own_modules
from .versions import same_versions

LISTEN_SECONDS = 2.0
ANSWER_SECONDS = 120.0  # for an agent to import torch and say hello
END_SECONDS = 5.0
GIVEN_BACK_SECONDS = 2.0
LOST_SECONDS = 60.0  # Ray goes on for a while to count on a node that is gone

lost: dict[str, float] = {}  # nodes (their ids) that cannot be reached, and when that was noticed


@dataclass(frozen=True)
class NodePlace(Place):
    """A node of a Ray cluster."""

    node: str = ""  # its id
    address: str = ""


class ActorLine:
    """An agent's end of its line to the caller."""

    def __init__(self) -> None:
        self.said: queue.Queue[tuple[str, Any]] = queue.Queue()
        self._heard: queue.Queue[tuple[str, Any] | None] = queue.Queue()
        self._early: dict[int, tuple[str, Any]] = {}  # words that have overtaken others
        self._next, self._sorting = 0, threading.Lock()

    def hear(self, number: int, kind: str, content: Any) -> None:
        with self._sorting:
            self._early[number] = kind, content
            while self._next in self._early:
                self._heard.put(self._early.pop(self._next))
                self._next += 1

    def send(self, kind: str, content: Any = None) -> None:
        self.said.put((kind, content))

    def receive(self) -> tuple[str, Any]:
        word = self._heard.get()
        if word is None:
            raise EOFError
        return word

    def open(self, carried: Any) -> int:
        import ray

        from ..shared_memory import anonymous_file

        file, rest = anonymous_file(0), memoryview(ray.get(carried))
        while rest:
            rest = rest[os.write(file, rest) :]
        return file

    def close(self) -> None:
        self._heard.put(None)


class AgentActor:
    """What Ray runs on each node. The process that forks ranks imports torch while this one does."""

    def __init__(self, place: int, host: str, gpus: Sequence[str]):
        if gpus:  # those of all ranks of this node
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        from ..launch.fork_server import warm_up

        warm_up()
        self._line = ActorLine()
        read, write = os.pipe()
        sys.stderr = os.fdopen(write, "w", buffering=1)  # which ranks inherit, and would else end in a log of Ray's
        threading.Thread(target=self._pass_on, args=(read,), daemon=True).start()
        self._life = threading.Thread(target=self._live, args=(place, host), daemon=True)
        self._life.start()

    def _pass_on(self, printed: int) -> None:
        while piece := os.read(printed, 1 << 16):
            self._line.send("printed", piece)

    def _live(self, place: int, host: str) -> None:
        try:
            from .agent import Agent

            Agent(self._line, host).live(place)
        except Exception as problem:
            self._line.send("gone", f"{type(problem).__name__}: {problem}")

    def hear(self, number: int, kind: str, content: Any) -> None:
        self._line.hear(number, kind, content)

    def listen(self, seconds: float) -> list[tuple[str, Any]]:
        said: list[tuple[str, Any]] = []
        with suppress(queue.Empty):
            said.append(self._line.said.get(timeout=seconds))
            while True:
                said.append(self._line.said.get_nowait())
        return said

    def others(self, digests: dict[str, str], path: Sequence[str]) -> list[str]:
        """Those of the caller's modules that this node has not, or not the same."""
        sys.path += [folder for folder in path if folder not in sys.path]
        return [name for name, digest in digests.items() if digest_of(name) != digest]

    def end(self) -> None:
        """Ends what was started here; the actor itself is killed afterwards."""
        from ..launch.fork_server import shut_down

        self._line.close()
        self._life.join(END_SECONDS)
        shut_down()


class GpuHolder:
    """Holds the GPUs of one rank, for Ray gives them to actors alone."""

    def ids(self) -> list[str]:
        import ray

        return [str(item) for item in ray.get_runtime_context().get_accelerator_ids().get("GPU", [])]


class RayAgents(Agents):
    """One actor per place, in a placement group that has one bundle per process, place by place."""

    def __init__(self, places: Sequence[NodePlace], group: Any, cpus: int, gpus: int):
        import ray

        self._ray, self._group, self.places = ray, group, list(places)
        self._nodes = [place.node for place in places]
        self.addresses = [place.address for place in places]
        self.cores = [place.processes * cpus for place in places]
        self._holders: list[Any] = []
        self._actors: list[Any] = []
        self._listening: dict[Any, int] = {}
        self._numbers = [count() for _ in places]  # of what is said to each
        self._problems: dict[int, Exception | str] = {}
        self._carried: Any = None
        try:
            ids = self._hold_gpus(gpus) if gpus else [[] for _ in places]
            kind = ray.remote(num_cpus=cpus, max_restarts=0, max_concurrency=4)(AgentActor)
            for index, place in enumerate(places):
                self._actors.append(self._in_bundle(kind, self._first(index)).remote(index, place.host, ids[index]))
                self._listen(index)
            self._meet()
        except BaseException:
            self.close()
            raise

    # ------------------------------------------------------------ meeting

    def _first(self, index: int) -> int:
        """The first bundle of a place."""
        return sum(place.processes for place in self.places[:index])

    def _in_bundle(self, kind: Any, bundle: int) -> Any:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return kind.options(
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle)
        )

    def _hold_gpus(self, gpus: int) -> list[list[str]]:
        """The GPUs of every place, those of its first rank first."""
        kind = self._ray.remote(num_cpus=0, num_gpus=gpus)(GpuHolder)
        bundles = range(self._first(len(self.places)))
        self._holders = [self._in_bundle(kind, bundle).remote() for bundle in bundles]
        ids = self._ray.get([holder.ids.remote() for holder in self._holders], timeout=ANSWER_SECONDS)
        firsts = [self._first(index) for index in range(len(self.places) + 1)]
        return [list(chain.from_iterable(ids[first:end])) for first, end in pairwise(firsts)]

    def _meet(self) -> None:
        """Until every agent has said hello."""
        missing, until = set(range(len(self.places))), time.monotonic() + ANSWER_SECONDS
        while missing:
            for agent, kind, content in self.heard(1.0):
                if kind == "gone":
                    raise self._not_started(agent)
                if kind == "hello":
                    same_versions(self.places[agent].host, content["versions"])
                missing.discard(agent)
            if time.monotonic() > until:
                host = self.places[min(missing)].host
                raise RankFailed(f"no word from the agent on {host} for {ANSWER_SECONDS:.0f} s", host=host)

    def _not_started(self, agent: int) -> Exception:
        host, problem = self.places[agent].host, str(self._problems[agent])
        if "No module named" in problem:
            name = problem.rpartition("No module named")[2].split()[0].strip("'\".")
            return BadInput(f"{name} is not installed on {host}; every node needs manyhands and what the task imports")
        return RankFailed(f"the agent on {host} could not start ({self.why(agent)})", host=host)

    # ------------------------------------------------------------ talking

    def _listen(self, agent: int) -> None:
        self._listening[self._actors[agent].listen.remote(LISTEN_SECONDS)] = agent

    def heard(self, seconds: float) -> list[tuple[int, str, Any]]:
        said: list[tuple[int, str, Any]] = []
        for ref in self._ready(seconds):
            agent = self._listening.pop(ref)
            try:
                words = self._ray.get(ref)
            except Exception as problem:  # the actor, its node, or the way there is gone
                words = [("gone", problem)]
            else:
                self._listen(agent)
            for kind, content in words:
                if kind == "gone":
                    self._problems[agent], content = content, None
                if kind == "printed":
                    print(content.decode(errors="replace"), end="", file=sys.stderr, flush=True)
                else:
                    said.append((agent, kind, content))
        return said

    def _ready(self, seconds: float) -> list[Any]:
        refs = list(self._listening)
        if not refs:
            time.sleep(seconds)
            return []
        first, _ = self._ray.wait(refs, timeout=seconds)
        return list(self._ray.wait(refs, num_returns=len(refs), timeout=0)[0]) if first else []

    def send(self, agent: int, kind: str, content: Any = None) -> None:
        if agent not in self._problems:
            self._actors[agent].hear.remote(next(self._numbers[agent]), kind, content)

    def carry(self, file: int) -> Any:
        import numpy as np

        from ..shared_memory import map_file

        self._carried = self._ray.put(np.frombuffer(map_file(file, shared=True), dtype=np.uint8))
        return self._carried

    def packing(self) -> AbstractContextManager[None]:
        """Modules of the user's that some node has not, or not the same, travel by value."""
        own = own_modules()
        asked = [actor.others.remote(own, sys.path) for actor in self._actors] if own else []
        return by_value(set().union(*self._ray.get(asked, timeout=ANSWER_SECONDS)))

    # ------------------------------------------------------------ the end

    def why(self, agent: int) -> str | None:
        node, problem = self._nodes[agent], self._problems.get(agent)
        known = {item["NodeID"]: item for item in self._ray.nodes()}.get(node, {})
        if not known.get("Alive"):
            return f"its Ray node has died: {known.get('DeathReasonMessage') or 'no reason given'}"
        if isinstance(problem, self._ray.exceptions.ActorDiedError):
            return str(problem).strip().splitlines()[-1].strip()
        lost[node] = time.monotonic()  # Ray does not know it yet, and would start others there
        if problem is None:
            return None
        return "Ray cannot reach it" if isinstance(problem, self._ray.exceptions.RayError) else str(problem)

    def close(self) -> None:
        living = [actor for index, actor in enumerate(self._actors) if index not in self._problems]
        with suppress(Exception):  # what does not end by itself is killed
            self._ray.get([actor.end.remote() for actor in living], timeout=END_SECONDS)
        for actor in [*self._actors, *self._holders]:
            with suppress(Exception):
                self._ray.kill(actor)
        with suppress(Exception):
            self._ray.util.remove_placement_group(self._group)
            self._wait_for_room()
        self._listening.clear()

    def _wait_for_room(self) -> None:
        """Ray gives resources back a moment later; whoever asks what is free next counts on it."""
        until, ours = time.monotonic() + GIVEN_BACK_SECONDS, self._group.id.hex()
        while time.monotonic() < until:
            free = free_by_node()
            if not any(ours in name for node in free.keys() - lost.keys() for name in free[node]):
                return
            time.sleep(0.02)


def free_by_node() -> dict[str, dict[str, float]]:
    """What nobody has reserved on each node. Ray has no public name for it; from outside, a task of the cluster looks."""
    import ray
    from ray._private.state import available_resources_per_node as look
    from ray.util.client import ray as client

    found: dict[str, dict[str, float]] = (
        ray.get(ray.remote(num_cpus=0)(look).remote()) if client.is_connected() else look()
    )
    return found
