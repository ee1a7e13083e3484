"""Hosts that are gone, frozen or cut off, where torchrun started the ranks: the others would wait for them for minutes.

    host a   every rank beats once a second in torchrun's store, and listens for the beats of the other hosts
    host b   the same; when it falls silent, the ranks of host a name it and end: torchrun then ends or restarts all

A host beats as long as one of its ranks does. The store is on a host too: a store that does not answer is that host's
silence, so one thread talks to the store and another has an eye on the clock. What left on purpose is not missed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist

BEAT_SECONDS, LOOK_SECONDS = 1.0, 0.25
SILENT_SECONDS = 10.0  # a host that was heard of before and has been silent this long is lost
SECOND_SECONDS = 3.0  # the other ranks of a host give its first one this long to report
AWAY_SECONDS = 2.0  # nobody looked for so long: it was this host that slept


class HostWatch:
    """Beats and listens while the block runs; every process of torchrun's must enter it. `lost` is told of a silent host."""

    def __init__(
        self,
        store: Callable[[], dist.Store],
        names: Sequence[str],
        by_host: Sequence[Sequence[int]],
        index: int,
        lost: Callable[[str], Any],
    ):
        self._store, self._names, self._by_host, self._lost = store, names, by_host, lost
        self.own = next(host for host, ranks in enumerate(by_host) if index in ranks)
        self._limit = SILENT_SECONDS + (SECOND_SECONDS if index != by_host[self.own][0] else 0.0)
        self._others = [host for host in range(len(by_host)) if host != self.own]
        self._counts = dict.fromkeys(self._others, 0)
        self._heard: dict[int, float] = {}  # host: when its count last grew; those that left are not in it
        self._answered = time.monotonic()  # when the store last did
        self._problem: str | None = None  # how it failed
        self._over = threading.Event()
        self._threads = [threading.Thread(target=target, daemon=True) for target in (self._talk, self._look)]

    def __enter__(self) -> HostWatch:
        if self._others:
            for thread in self._threads:
                thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._over.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(BEAT_SECONDS)  # one that hangs in the store ends with this process

    # ------------------------------------------------------------ in the store

    def _talk(self) -> None:
        try:
            store = self._store()
            while not self._over.is_set():
                self._beat(store)
                self._over.wait(BEAT_SECONDS)
            store.add(f"left/{self.own}", 1)
        except Exception as problem:
            self._problem = str(problem).strip().splitlines()[0]

    def _beat(self, store: dist.Store) -> None:
        store.add(f"beat/{self.own}", 1)
        for host in self._others:
            count, left = store.add(f"beat/{host}", 0), store.add(f"left/{host}", 0)
            if left >= len(self._by_host[host]):
                self._heard.pop(host, None)
            elif count != self._counts[host]:
                self._counts[host], self._heard[host] = count, time.monotonic()
        if self._problem is None:
            self._answered = time.monotonic()

    # ------------------------------------------------------------ at the clock

    def _look(self) -> None:
        looked = time.monotonic()
        while not self._over.wait(LOOK_SECONDS):
            now = time.monotonic()
            if now - looked > AWAY_SECONDS:
                self._answered = now
                self._heard = dict.fromkeys(self._heard, now)
            looked = now
            if (silent := self._silent(now)) is not None:
                self._lost(silent)
                return

    def _silent(self, now: float) -> str | None:
        """What is to be said of the host that was silent for too long."""
        waited = now - self._answered
        if self._problem is not None and waited > SECOND_SECONDS:  # else what ended this fit is about to be reported
            return f"{self._who(0)} is gone: torchrun's store there has closed ({self._problem})"
        if waited > self._limit:
            return f"{self._who(0)} has been silent for {waited:.0f} s: torchrun's store there does not answer"
        for host, heard in list(self._heard.items()):
            if now - heard > self._limit:
                return f"{self._who(host)} has been silent for {now - heard:.0f} s: it is frozen, gone or cut off"
        return None

    def _who(self, host: int) -> str:
        ranks = [str(rank) for rank in self._by_host[host]]
        listed = f"ranks {', '.join(ranks[:-1])} and {ranks[-1]}" if len(ranks) > 1 else f"rank {ranks[0]}"
        return f"host {self._names[host]} ({listed})"
