"""What an engine that reaches other hosts offers: where processes would run, and agents that start them there.

    places = cluster.plan(8)            which hosts would hold 8 processes; nothing is started
    agents = cluster.start(places, say) one agent on every host, which waits for launches
    agents.send / agents.heard          the caller's line to each of them
    agents.close()                      ends them, with all they started

A new one is a file with these two classes (world/agents/tcp.py has the second, for engines that can start a command).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

from ...errors import BadInput


@dataclass(frozen=True)
class Place:
    """A host, and how many processes start there (or, of an allocation, how many it has room for)."""

    host: str
    processes: int


class Agents(ABC):
    """Open agents as the caller reaches them, one per host, in the order of their places."""

    places: list[Place]  # their hosts, and the room on each
    addresses: list[str]  # where the others find each host
    cores: list[int]  # that the ranks of each host may use

    @abstractmethod
    def heard(self, seconds: float) -> list[tuple[int, str, Any]]:
        """(agent, kind, content) of what was said; waits this long for a first word. `gone`, once, when a line has ended."""

    @abstractmethod
    def send(self, agent: int, kind: str, content: Any = None) -> None:
        """Say something; one that is gone does not hear it, and `heard` says so."""

    @abstractmethod
    def carry(self, file: int) -> Any:
        """Bring the content of a file (a descriptor) to all agents: what this returns, an agent's line turns into a file."""

    def packing(self) -> AbstractContextManager[None]:
        """What is packed for these agents is packed within this."""
        return nullcontext()

    @abstractmethod
    def close(self) -> None:
        """End all agents and what they started, and give back what was reserved."""

    def why(self, agent: int) -> str | None:
        """How the engine explains that an agent is lost: its node failed, the time limit has passed. None if it does not know."""
        return None


class Cluster(ABC):
    """Hosts that something else manages: a frozen dataclass whose fields say which ones and what of them."""

    name: ClassVar[str]

    def connected(self) -> AbstractContextManager[None]:
        """The connection to whatever manages the hosts, while an engine is open; BadInput where there is none."""
        return nullcontext()

    @abstractmethod
    def plan(self, processes: int) -> list[Place]:
        """Where so many processes would run; BadInput, within seconds, where they never can. Nothing is started."""

    @abstractmethod
    def start(self, places: Sequence[Place], say: Callable[[str], None]) -> Agents:
        """Start an agent on each of these hosts and return when all have answered; `say` what it waits for."""

    def room(self) -> int | None:
        """For how many processes there is room now, beside those that run; None if it is always as many as were asked for."""
        return None

    @property
    def gpus(self) -> bool:
        """Whether the ranks get GPUs."""
        return False

    def spread(self, processes: int, room: Sequence[Place]) -> list[Place]:
        """How processes are divided over hosts that are already there: the fewest of them, in their order."""
        return packed(processes, room)


def packed(processes: int, room: Sequence[Place]) -> list[Place]:
    """Fill one host after the other; those left over get none."""
    places, left = [], _check_room(processes, room)
    for place in room:
        taken = min(left, place.processes)
        places.append(Place(place.host, taken))
        left -= taken
    return places


def evenly(processes: int, room: Sequence[Place]) -> list[Place]:
    """As many on every host as on the next, as far as there is room; the first get what is over."""
    left, taken = _check_room(processes, room), [0] * len(room)
    while left:
        for index, place in enumerate(room):
            if left and taken[index] < place.processes:
                taken[index] += 1
                left -= 1
    return [Place(place.host, count) for place, count in zip(room, taken, strict=True)]


def _check_room(processes: int, room: Sequence[Place]) -> int:
    most = sum(place.processes for place in room)
    if processes > most:
        hosts = ", ".join(f"{place.host}: {place.processes}" for place in room)
        raise BadInput(f"{processes} processes were asked for but there is room for {most} ({hosts}); use fewer ranks")
    return processes
