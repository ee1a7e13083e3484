"""The caller's side of one launch whose processes agents start: a board made of their heartbeats, and who is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from ...errors import RankFailed
from ..engines.cluster import Agents, Place
from ..health.heartbeats import SINCE, Board, failed_at, name_of, where
from ..launch.conversation import LOOK_UP, Conversation
from .agent import ProcessBeat
from .orders import LaunchOrders

SILENT_SECONDS = 10.0  # without a word a host is lost; its agent speaks four times a second
AWAY_SECONDS = 2.0  # the caller itself was not listening: it was in a callback, or stopped
END_SECONDS = 15.0  # in which an agent ends its processes
STACK_SECONDS = 5.0  # in which agents say where their processes are


class RemoteLaunch(Conversation):
    """A launch over the hosts of `places`, those without processes left out."""

    def __init__(self, agents: Agents, places: list[Place], processes: int, ranks: int):
        self.agents, self.places = agents, places
        self.firsts = [sum(place.processes for place in places[:index]) for index in range(len(places))]
        hosts = [place.host for place in places for _ in range(place.processes)]
        super().__init__(_Board(processes, ranks, hosts), range(processes))
        self.busy = {agent for agent, place in enumerate(places) if place.processes}  # their launch has not ended
        self.lost: set[int] = set()
        self.used: dict[int, tuple[float, bool]] = {}  # of each process: processor seconds, and whether it is stopped
        self._looked = time.monotonic()
        self._heard_of = dict.fromkeys(self.busy, self._looked)
        self._stacks: list[str] = []

    def start(self, orders: dict[int, LaunchOrders]) -> None:
        for agent, order in orders.items():
            self.agents.send(agent, "launch", order)

    # ------------------------------------------------------------ hearing

    def heard(self) -> Iterator[tuple[int, str, Any]]:
        now = time.monotonic()
        if now - self._looked > AWAY_SECONDS:
            self._heard_of = dict.fromkeys(self._heard_of, now)
        for agent, kind, content in self.agents.heard(LOOK_UP):
            self._heard_of[agent] = time.monotonic()
            yield from self._understood(agent, kind, content)
        self._looked = time.monotonic()
        silent = [agent for agent in self.busy if self._looked - self._heard_of[agent] > SILENT_SECONDS]
        for agent in silent:
            yield self.firsts[agent], "failed", self._lost(agent, self._looked - self._heard_of[agent])

    def _understood(self, agent: int, kind: str, content: Any) -> Iterator[tuple[int, str, Any]]:
        if kind == "beats":
            for beat in content:
                self._write_down(beat)
        elif kind == "rank":
            yield content
        elif kind == "failed":
            if not isinstance(content, RankFailed):
                raise content
            yield self.firsts[agent], "failed", content
        elif kind == "ended":
            self._stacks.append(content or "")
        elif kind == "idle":
            self.busy.discard(agent)
        elif kind == "gone" and agent in self.busy:
            yield self.firsts[agent], "failed", self._lost(agent, None)

    def _write_down(self, beat: ProcessBeat) -> None:
        row = self.board.row(beat.index)
        row.cast("B")[:] = beat.cells
        row[SINCE] = time.monotonic_ns() - int(beat.seconds_ago * 1e9)  # clocks of two hosts have nothing in common
        self.used[beat.index] = beat.used, beat.stopped

    def _lost(self, agent: int, silent: float | None) -> RankFailed:
        """A host that has hung up, or has not been heard of for too long."""
        self.busy.discard(agent)
        self.lost.add(agent)
        place, first = self.places[agent], self.firsts[agent]
        beat = self.board.beat(first)
        names = [name_of(index, self.board.ranks) for index in range(first, first + place.processes)]
        why = self.agents.why(agent)
        if why is None:
            why = (
                "its agent has ended"
                if silent is None
                else f"not heard of for {silent:.0f} s: it is frozen, or its network is down"
            )
        failure = failed_at(
            beat, "died", f"host {place.host} is lost ({why}), with {_listed(names)} in {where(beat.step, beat.phase)}"
        )
        failure.host, failure.detected_seconds = place.host, silent if silent is not None else beat.seconds_ago
        return failure

    # ------------------------------------------------------------ saying

    def answer(self, index: int, answer: Any) -> None:
        self.agents.send(self.agent_of(index), "answer", answer)

    def agent_of(self, index: int) -> int:
        return next(agent for agent, first in enumerate(self.firsts) if index < first + self.places[agent].processes)

    def death(self, index: int) -> RankFailed:
        raise AssertionError("agents tell how their processes ended")

    def go_on_without(self, failure: RankFailed) -> None:
        raise AssertionError("refused before the start: the dead are only left behind on one host")

    def all_stacks(self) -> str:
        """Ask every agent; this ends the launch on all of them."""
        asked = len(self.busy)
        for agent in self.busy:
            self.agents.send(agent, "end", True)
        until = time.monotonic() + STACK_SECONDS
        while len(self._stacks) < asked and time.monotonic() < until:
            for agent, kind, content in self.agents.heard(LOOK_UP):
                list(self._understood(agent, kind, content))
        return "\n".join(self._stacks)

    def end(self) -> bool:
        """Let every agent end what is left; whether all of them are ready for another launch."""
        for agent in self.busy:
            self.agents.send(agent, "end", False)
        until = time.monotonic() + END_SECONDS
        while self.busy and time.monotonic() < until:
            for agent, kind, _ in self.agents.heard(LOOK_UP):
                if kind in ("idle", "gone"):
                    self.busy.discard(agent)
                if kind == "gone":
                    self.lost.add(agent)
        return not self.busy and not self.lost


class _Board(Board):
    """Rows that agents have sent; each process has a host of its own."""

    def __init__(self, processes: int, ranks: int, hosts: list[str]):
        super().__init__(processes, ranks=ranks)
        self._hosts = hosts if len(set(hosts)) > 1 else None

    def host_of(self, rank: int) -> str | None:
        return self._hosts[rank] if self._hosts else None


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
