"""Stages: meetings of all ranks in shared memory, which every collective is made of.

In a stage each rank may write into its own slot, announces its arrival, waits for the ranks whose slots it needs, and
reads those. Slots and arrivals exist twice, for even and odd stages:

    rank 0   write slot 0 | arrive s | wait for all s | read slots   | write | arrive s+1 | ...
    rank 1   write slot 1 |     arrive s | ............ read slots   |   write | arrive s+1 | ...

Before a rank writes for stage s+1 it makes sure that all have arrived at s: they are then done with s-1, whose slot it
reuses. So one wait a stage is enough, a rank may run at most one stage ahead, and a root that only gives (broadcast,
scatter) or a rank that only hands in (reduce, gather) does not wait at all. The word that announces an arrival carries
the stage and a fingerprint of what is being done, so ranks that call different things are found out, not mixed up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...errors import RankFailed
from .group_memory import Memory, fence
from .work import Counts, Steps

CACHED_VIEWS = 1024
NAMES = [
    "barrier",
    "all_reduce",
    "reduce",
    "reduce_scatter",
    "all_gather",
    "gather",
    "broadcast",
    "scatter",
    "all_to_all",
]
CODE = {name: code << 16 for code, name in enumerate(NAMES)}
_ALL_DTYPES = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
_DTYPE: dict[torch.dtype | None, int] = {dtype: code for code, dtype in enumerate(sorted(_ALL_DTYPES, key=str))}


class Stages:
    """One rank's side of the meetings."""

    def __init__(self, memory: Memory, counts: Counts, global_ranks: Sequence[int]):
        layout = memory.layout
        self.rank, self.size = memory.rank, layout.ranks
        self._memory, self._counts, self._global_ranks = memory, counts, global_ranks
        self._words = memory.words
        self._mine = [layout.arrival(self.rank, parity) for parity in (0, 1)]
        self._others = [
            [(rank, layout.arrival(rank, parity)) for rank in range(self.size) if rank != self.rank]
            for parity in (0, 1)
        ]
        self._stage = self._parity = self._word = 0
        self._met = True  # whether all are known to have arrived at this stage
        self._views: dict[tuple[Any, ...], Any] = {}  # of slots

    def _enter(self, mark: int) -> Steps:
        """The next stage; afterwards this rank's slot may be written."""
        if not self._met:
            yield from self._all()
        self._stage += 1
        self._parity = self._stage & 1
        self._word = self._stage << 24 | mark
        self._met = False

    def _arrive(self, written: int = 0) -> None:
        if fence:
            fence()
        self._words[self._mine[self._parity]] = self._word
        self._counts.moved_bytes += written
        self._counts.progress += 1

    def _all(self) -> Steps:
        words, word = self._words, self._word
        for rank, at in self._others[self._parity]:
            if words[at] != word:
                yield from self._until(rank, at)
        if fence:
            fence()
        self._met = True

    def _one(self, rank: int) -> Steps:
        if rank != self.rank:
            yield from self._until(rank, self._memory.layout.arrival(rank, self._parity))
            if fence:
                fence()

    def _until(self, rank: int, at: int) -> Steps:
        while (seen := self._words[at]) != self._word:
            if seen >> 24 == self._stage:
                raise self._disagreement(rank, seen)
            yield rank
        self._counts.progress += 1

    def missing(self) -> list[int]:
        return [rank for rank, at in self._others[self._parity] if self._words[at] != self._word]

    def _disagreement(self, rank: int, seen: int) -> RankFailed:
        here, there = (NAMES[word >> 16 & 0xFF] for word in (self._word, seen))
        me, other = self._global_ranks[self.rank], self._global_ranks[rank]
        if here == there:
            text = f"rank {me} and rank {other} both called {here}, but with another size, dtype, root or operation"
        else:
            text = f"rank {me} called {here} while rank {other} called {there}"
        return RankFailed(f"{text}; every rank of a group must call the same collectives in the same order", rank=other)

    # -- slots -------------------------------------------------------------------------------------------------------

    def _slots(self, dtype: torch.dtype, start: int, count: int) -> list[Tensor]:
        """Every rank's slot of this stage, from element `start` on."""
        key = (dtype, start, count, self._parity)
        views = self._views.get(key)
        if views is None:
            layout = self._memory.layout
            at = [layout.slot(rank, self._parity) + start * dtype.itemsize for rank in range(self.size)]
            views = [self._memory.tensor(dtype, offset, count) for offset in at]
            self._remember(key, views)
        return views

    def _table(self, dtype: torch.dtype, count: int, shift: int) -> Tensor:
        """(ranks, count): row r is rank r's slot of this stage from element `shift * r` on."""
        key = (dtype, count, self._parity, shift, "table")
        table = self._views.get(key)
        if table is None:
            each, start = self._capacity(dtype), self._memory.layout.slot(0, self._parity)
            everything = self._memory.tensor(dtype, start, each * self.size)
            table = everything.as_strided((self.size, count), (each + shift, 1))
            self._remember(key, table)
        return table

    def _remember(self, key: tuple, views: object) -> None:
        if len(self._views) >= CACHED_VIEWS:
            self._views.clear()
        self._views[key] = views

    def _capacity(self, dtype: torch.dtype, parts: int = 1) -> int:
        """How many elements fit into one of so many equal parts of a slot, each beginning at a cache line."""
        return self._memory.layout.slot_bytes // parts // 64 * 64 // dtype.itemsize

    def _mark(self, name: str, dtype: torch.dtype | None, *facts: int) -> int:
        """What this rank is about to do, in 24 bits; hashes of numbers are the same in all processes."""
        return CODE[name] | hash((_DTYPE.get(dtype, -1), *facts)) & 0xFFFF
