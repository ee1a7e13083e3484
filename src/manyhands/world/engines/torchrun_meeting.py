"""How torchrun's processes meet: over its store, which outlives every process group and every fit.

    rank 0   call = a new word ........ reads all answers ...... go = who is there     once in the life of a process
    others   answer under that word ..................... until go names this very process

torchrun keeps one store while it starts processes again, so words of processes that are gone still stand in it. A new
word for every start, and a number that each process has made up for itself, tell the living from the gone. All later
words are said under the first: fit by fit, each process under its own number.
"""

from __future__ import annotations

import os
import pickle
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any

import cloudpickle
import psutil
import torch.distributed as dist

from ...errors import PeerMissing

MEET_SECONDS, LEAVE_SECONDS = 600.0, 5.0
LOOK_SECONDS = 0.02, 0.2  # between two looks: at first, and when nothing has come for a while


@dataclass(frozen=True)
class Member:
    """What one process says of itself."""

    nonce: str
    host: str
    local: int  # its number on its host
    began: float  # when its torchrun did (seconds since 1970)


class Gathering:
    """All processes of one start of torchrun's."""

    def __init__(self, index: int, processes: int):
        self.index, self.processes = index, processes
        self._base = new_store()
        word, self.members = self._meet()
        self._store = dist.PrefixStore(f"manyhands/{word}", self._base)
        self._word = word
        self._meetings = 0

    def _meet(self) -> tuple[str, list[Member]]:
        host, local = socket.gethostname(), int(os.environ.get("LOCAL_RANK", self.index))
        me = Member(uuid.uuid4().hex, host, local, psutil.Process(os.getppid()).create_time())
        return self._call(me) if self.index == 0 else self._answer(me)

    def _call(self, me: Member) -> tuple[str, list[Member]]:
        store = self._base
        store.set("manyhands/call", me.nonce)
        keys = [f"manyhands/{me.nonce}/{other}" for other in range(1, self.processes)]
        waited_for(lambda: store.check(keys), "all processes of torchrun to answer", MEET_SECONDS)
        members = [me, *(pickle.loads(store.get(key)) for key in keys)]  # noqa: S301 (from a process of this run)
        store.set(f"manyhands/{me.nonce}/go", cloudpickle.dumps(members))
        return me.nonce, members

    def _answer(self, me: Member) -> tuple[str, list[Member]]:
        store, answered, found = self._base, "", list[Member]()

        def is_expected() -> bool:
            nonlocal answered, found
            if store.check(["manyhands/call"]) and (word := store.get("manyhands/call").decode()) != answered:
                answered = word
                store.set(f"manyhands/{word}/{self.index}", cloudpickle.dumps(me))
            if answered and store.check([f"manyhands/{answered}/go"]):
                found = pickle.loads(store.get(f"manyhands/{answered}/go"))  # noqa: S301 (from rank 0 of this run)
            return len(found) == self.processes and found[self.index] == me

        waited_for(is_expected, "rank 0 of torchrun", MEET_SECONDS)
        return answered, found

    @property
    def began(self) -> float:
        """When the first torchrun of this run did; those of hosts that came later are younger."""
        return min(member.began for member in self.members)

    def by_host(self, processes: int) -> list[list[int]]:
        """The first so many processes, host by host: torchrun numbers them in blocks, and each begins with local rank 0."""
        hosts: list[list[int]] = []
        for index, member in enumerate(self.members[:processes]):
            if member.local == 0 or not hosts:
                hosts.append([])
            hosts[-1].append(index)
        return hosts

    def hosts(self) -> list[str]:
        """The names of all hosts; those that are called alike are numbered."""
        names = [self.members[block[0]].host for block in self.by_host(self.processes)]
        twice = {name for name in names if names.count(name) > 1}
        return [f"{name}#{number}" if name in twice else name for number, name in enumerate(names)]

    def host_of(self, index: int) -> str:
        blocks = self.by_host(self.processes)
        return next(name for name, block in zip(self.hosts(), blocks, strict=True) if index in block)

    def next(self) -> Meeting:
        """A new meeting; every process opens all of them, in the same order."""
        self._meetings += 1
        return Meeting(self.index, dist.PrefixStore(f"{self._meetings}", self._store))

    def beats(self) -> dist.Store:
        """A line to the store for one thread alone: a call that hangs there holds up nobody else."""
        return dist.PrefixStore(f"manyhands/{self._word}/beats-{self._meetings}", new_store())

    def agree(self, value: Any) -> Any:
        """Rank 0's value, everywhere."""
        meeting = self.next()
        if self.index == 0:
            meeting.say("agreed", value)
        found = meeting.heard("agreed", 0)
        self.part(meeting)
        return found

    def part(self, meeting: Meeting) -> None:
        """The end of a meeting: where no agent of torchrun's keeps the store, rank 0 does, and stays until all are gone."""
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            return
        with suppress(PeerMissing):
            meeting.say("left", None)
            if self.index == 0:
                meeting.all_heard("left", range(self.processes), LEAVE_SECONDS)


class Meeting:
    """What processes tell each other on one occasion, one word of each kind."""

    def __init__(self, index: int, store: dist.Store):
        self.index, self.store = index, store

    def say(self, word: str, value: Any) -> None:
        with _reached():
            self.store.set(f"{word}/{self.index}", cloudpickle.dumps(value))

    def heard(self, word: str, index: int, limit: float | None = MEET_SECONDS) -> Any:
        """What that process has said, waited for (without a limit: torchrun ends us where it is gone)."""
        key = f"{word}/{index}"
        with _reached():
            waited_for(lambda: self.store.check([key]), f"rank {index} of torchrun ({word})", limit)
            return pickle.loads(self.store.get(key))  # noqa: S301 (from a process of this run)

    def all_heard(self, word: str, indexes: Iterable[int], limit: float | None = MEET_SECONDS) -> list[Any]:
        return [self.heard(word, index, limit) for index in indexes]


@contextmanager
def _reached() -> Iterator[None]:
    try:
        yield
    except dist.DistError as problem:
        reason = str(problem).strip().splitlines()[0]
        raise PeerMissing(f"torchrun's store, which the ranks meet by, is gone ({reason})") from None


def waited_for(come: Callable[[], bool], whom: str, limit: float | None) -> None:
    """Looks again and again instead of waiting in the store, which would hear no Ctrl-C."""
    began, pause = time.monotonic(), LOOK_SECONDS[0]
    while not come():
        if limit is not None and time.monotonic() - began > limit:
            raise PeerMissing(f"waited {limit:.0f} s for {whom} in vain")
        time.sleep(pause)
        pause = min(pause * 1.2, LOOK_SECONDS[1])


def new_store() -> dist.Store:
    """A line of its own to the store that torchrun keeps; without torchrun's agent, rank 0 keeps it."""
    store: dist.Store = next(iter(dist.rendezvous("env://", timeout=timedelta(seconds=MEET_SECONDS))))[0]
    return store


@lru_cache(maxsize=1)
def _gathered(place: tuple[str, ...], process: int) -> Gathering:
    return Gathering(int(place[0]), int(place[1]))


def gathered() -> Gathering:
    """The processes that torchrun has started with this one, met once."""
    place = tuple(os.environ[name] for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
    return _gathered(place, os.getpid())
