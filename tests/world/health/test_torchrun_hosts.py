"""Hosts that fall silent under torchrun: named once, with their ranks; those that leave on purpose are not missed. The two
hosts here are two watches of one process with a store between them, and a clock that the tests move: how busy the machine
is does not show."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from manyhands.world.health import torchrun_hosts
from manyhands.world.health.torchrun_hosts import AWAY_SECONDS, SILENT_SECONDS, HostWatch

HOSTS = [[0, 1], [2]]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def runs_until(self, true: Callable[[], Any], pace: Callable[[], None] = lambda: time.sleep(0.02)) -> None:
        """A second after the other, each so long as the pace."""
        until = time.monotonic() + 60
        while not true() and time.monotonic() < until:
            self.now += 1.0
            pace()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Threads look and beat often, by the clock of the wall; what they read is this one."""
    made = Clock()
    monkeypatch.setattr(torchrun_hosts, "time", SimpleNamespace(monotonic=made.monotonic))
    for name, seconds in {"BEAT_SECONDS": 0.02, "LOOK_SECONDS": 0.01, "AWAY_SECONDS": float("inf")}.items():
        monkeypatch.setattr(torchrun_hosts, name, seconds)
    return made


class Frozen(dist.Store):
    """A store whose host can be frozen: calls do not come back."""

    def __init__(self, store: dist.Store):
        super().__init__()
        self.store, self.thawed, self.problem = store, threading.Event(), ""
        self.stuck = threading.Event()
        self.thawed.set()

    def add(self, key: str, number: int) -> int:
        if not self.thawed.is_set():
            self.stuck.set()
        self.thawed.wait()
        if self.problem:
            raise RuntimeError(self.problem)
        return self.store.add(key, number)

    def freeze(self) -> None:
        """Comes back when somebody hangs in it."""
        self.thawed.clear()
        assert self.stuck.wait(60)


class Watch(HostWatch):
    """Counts how often it has looked at the clock."""

    looks = 0

    def _silent(self, now: float) -> str | None:
        self.looks += 1
        return super()._silent(now)

    def looks_again(self) -> None:
        """More than once: the first look may have begun before what it is to see."""
        seen = self.looks
        wait_until(lambda: self.looks >= seen + 3)

    def beats_again(self, store: dist.Store) -> None:
        seen = store.add(f"beat/{self.own}", 0)
        wait_until(lambda: store.add(f"beat/{self.own}", 0) >= seen + 3)


def watch(store: dist.Store, index: int, lost: Callable[[str], Any]) -> Watch:
    return Watch(lambda: store, ["a", "b"], HOSTS, index, lost)


def wait_until(true: Callable[[], Any]) -> None:
    until = time.monotonic() + 60
    while not true():
        assert time.monotonic() < until, "it did not come"
        time.sleep(0.005)


def test_one_that_left_is_not_missed(clock: Clock) -> None:
    said: list[str] = []
    store = dist.HashStore()
    with watch(store, 2, said.append) as left_alone:
        with watch(store, 0, said.append), watch(store, 1, said.append):
            wait_until(lambda: left_alone._heard)
        wait_until(lambda: not left_alone._heard)
        for _ in range(2 * int(SILENT_SECONDS)):
            clock.now += 1.0
            left_alone.beats_again(store)
            left_alone.looks_again()
    assert said == []


def test_a_silent_host_is_named_with_its_ranks(clock: Clock) -> None:
    said: list[str] = []
    store = dist.HashStore()
    theirs = Frozen(store)
    with watch(store, 0, said.append) as mine, watch(theirs, 2, lambda text: None):
        wait_until(lambda: mine._heard)
        theirs.freeze()
        mine.beats_again(store)  # and hears the last word of the other
        before = clock.now
        clock.runs_until(lambda: said, pace=lambda: mine.beats_again(store))
        theirs.thawed.set()
    assert said[0].startswith("host b (rank 2) has been silent for ")
    assert said[0].endswith("s: it is frozen, gone or cut off")
    assert clock.now > before + SILENT_SECONDS


def test_a_store_that_hangs_or_closes_is_the_silence_of_its_host(clock: Clock) -> None:
    """Every call of the store would have waited for ever, and the watch with it."""
    hanging, closed = Frozen(dist.HashStore()), Frozen(dist.HashStore())
    said: list[str] = []
    with watch(hanging, 2, said.append) as mine:
        mine.beats_again(hanging.store)
        hanging.freeze()
        clock.runs_until(lambda: said)
        assert "host a (ranks 0 and 1) has been silent for" in said[0]
        assert said[0].endswith("torchrun's store there does not answer")
        hanging.thawed.set()
    said.clear()
    with watch(closed, 2, said.append) as mine:
        mine.beats_again(closed.store)
        closed.problem = "Broken pipe"
        wait_until(lambda: mine._problem)
        clock.runs_until(lambda: said)
        assert said == ["host a (ranks 0 and 1) is gone: torchrun's store there has closed (Broken pipe)"]


@pytest.mark.parametrize("away", [AWAY_SECONDS, float("inf")], ids=["as it is", "without the rule"])
def test_who_slept_itself_blames_nobody(clock: Clock, away: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that was frozen and woke up would have named the others, who had not stopped."""
    monkeypatch.setattr(torchrun_hosts, "AWAY_SECONDS", away)
    said: list[str] = []
    store = dist.HashStore()
    ours = Frozen(store)
    with watch(ours, 0, said.append) as mine, watch(store, 2, lambda text: None):
        wait_until(lambda: mine._heard)
        ours.freeze()
        mine.looks_again()
        clock.now += 2 * SILENT_SECONDS
        if away == AWAY_SECONDS:
            mine.looks_again()
            assert said == []
        else:
            wait_until(lambda: said)
        ours.thawed.set()
