"""Hosts that fall silent under torchrun: named once, with their ranks; those that leave on purpose are not missed. The two
hosts here are two watches of one process with a store between them, and seconds are hundredths."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist

from manyhands.world.health import torchrun_hosts
from manyhands.world.health.torchrun_hosts import HostWatch

HOSTS = [[0, 1], [2]]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = {
        "BEAT_SECONDS": 0.02,
        "LOOK_SECONDS": 0.01,
        "SILENT_SECONDS": 0.5,
        "SECOND_SECONDS": 0.1,
        "AWAY_SECONDS": 9,
    }
    for name, seconds in quick.items():
        monkeypatch.setattr(torchrun_hosts, name, seconds)


class Frozen(dist.Store):
    """A store whose host can be frozen: calls do not come back."""

    def __init__(self, store: dist.Store):
        super().__init__()
        self.store, self.thawed, self.problem = store, threading.Event(), ""
        self.thawed.set()

    def add(self, key: str, number: int) -> int:
        self.thawed.wait()
        if self.problem:
            raise RuntimeError(self.problem)
        return self.store.add(key, number)


def watch(store: dist.Store, index: int, lost: Callable[[str], Any]) -> HostWatch:
    return HostWatch(lambda: store, ["a", "b"], HOSTS, index, lost)


def first(said: list[str], seconds: float = 10) -> str:
    until = time.monotonic() + seconds
    while not said and time.monotonic() < until:
        time.sleep(0.01)
    return said[0] if said else ""


def test_a_silent_host_is_named_with_its_ranks_and_one_that_left_is_not() -> None:
    said: list[str] = []
    store, theirs = dist.HashStore(), Frozen(dist.HashStore())
    theirs.store = store
    with watch(store, 2, said.append):
        with watch(store, 0, said.append), watch(store, 1, said.append):
            time.sleep(0.2)
        time.sleep(1.0)  # twice the limit after both ranks of host a have left
        assert said == []
    store = theirs.store = dist.HashStore()
    with watch(store, 0, said.append), watch(theirs, 2, lambda text: None):
        time.sleep(0.2)
        theirs.thawed.clear()
        line = first(said)
        theirs.thawed.set()
    assert line.startswith("host b (rank 2) has been silent for ")
    assert line.endswith("s: it is frozen, gone or cut off")


def test_a_store_that_hangs_or_closes_is_the_silence_of_its_host() -> None:
    """Every call of the store would have waited for ever, and the watch with it."""
    hanging, closed = Frozen(dist.HashStore()), Frozen(dist.HashStore())
    said: list[str] = []
    with watch(hanging, 2, said.append):
        time.sleep(0.1)
        hanging.thawed.clear()
        assert "host a (ranks 0 and 1) has been silent for" in first(said)
        assert said[0].endswith("torchrun's store there does not answer")
        hanging.thawed.set()
    said.clear()
    with watch(closed, 2, said.append):
        time.sleep(0.1)
        closed.problem = "Broken pipe"
        assert first(said) == "host a (ranks 0 and 1) is gone: torchrun's store there has closed (Broken pipe)"


def test_who_slept_itself_blames_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that was frozen and woke up would have named the others, who had not stopped."""
    monkeypatch.setattr(torchrun_hosts, "AWAY_SECONDS", 0.3)
    said: list[str] = []
    store = dist.HashStore()
    mine = watch(store, 0, said.append)
    wait = mine._over.wait
    slept: list[float] = []

    def asleep(seconds: float) -> bool:
        if seconds == torchrun_hosts.LOOK_SECONDS and not slept and mine._heard:
            slept.append(1.0)
            time.sleep(1.0)  # twice the limit
            mine._heard[1] -= 1.0  # its thread slept as well
        return wait(seconds)

    monkeypatch.setattr(mine._over, "wait", asleep)
    with mine, watch(store, 2, said.append):
        until = time.monotonic() + 10
        while not slept and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(1.3)
    assert slept
    assert said == []
