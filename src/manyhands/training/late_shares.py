"""Shares that a rank takes over from others: of ranks that died, and of ranks that are behind when an epoch ends.

    rank 0   | 1 | 2 | 3 | 4 | 5 | 6 |  (6 of rank 1) ...     done early: make the last share of the one furthest behind
    rank 1   |   1   |   2   |   3   |   4   |   5   |        its share of step 6 is gone, so it is done too

Only strategies whose ranks never wait for each other can do this: who computes a share does not matter to them. A rank
gives away what it has not begun, last share first; each share is made once, because the board is locked while it
changes hands.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from ..data.batches import Batch
from ..data.feed import RankFeed
from ..data.keys import sample_keys
from ..data.order import PlannedStep, Shard
from ..world.rank import Rank

LOOK_AGAIN_SECONDS = 1e-3


class LateShares:
    """A feed around a rank's own that gives shares away and takes those of others.

    `helps`: ranks make shares of those behind; `survive`: shares of dead ranks are made by the others.
    """

    def __init__(self, feed: RankFeed, rank: Rank, helps: bool, survive: bool):
        self.feed, self.rank, self.helps, self.survive = feed, rank, helps, survive
        self.order = feed.order

    def begin(self, steps: Sequence[PlannedStep]) -> None:
        self.feed.begin(steps)
        if self.helps:
            self.rank.board.plan(self.rank.index, steps[-1].before + 1)

    def next(self, step: PlannedStep) -> Batch | None:
        if self.feed.shard is None:
            return self.feed.next(step)
        if self.helps and not self.rank.board.keep(self.rank.index, step.before + 1):
            self.feed.seed(step)
            return Batch(None, None, 0, step, given_away=True)
        batch = self.feed.read()
        assert batch is not None
        if self.survive and self.rank.board.anyone_lost:
            self._add_to(batch)
        return self._ready(batch)

    def extra(self, last: PlannedStep) -> Iterator[Batch]:
        """Shares of others, until every rank is done or making its last."""
        done = last.before + 1
        while self.helps:
            taken = self.rank.board.take(done, self.survive)
            if taken is not None:
                step, shard = self._share(*taken)
                batch = Batch(None, None, 0, step, own=False)
                self._fill(batch, [(step, shard)])
                if batch.count:
                    yield self._ready(batch)
            elif not self.survive or self.rank.board.all_finished(done):
                return
            else:
                with self.rank.clock.during("wait"):
                    time.sleep(LOOK_AGAIN_SECONDS)  # a rank that dies now leaves something to do

    def _ready(self, batch: Batch) -> Batch:
        self.feed.seed(batch.step)
        self.feed.prepare(batch)
        return batch

    def _add_to(self, batch: Batch) -> None:
        """Add shares of dead ranks: two at a time, in an epoch's last step all that are left."""
        last = batch.step.number + 1 == self.order.steps_per_epoch and not self.helps
        claimed = self.rank.board.claim(batch.step.before + 1, sys.maxsize if last else 2)
        if claimed:
            assert self.feed.shard is not None
            own = [(batch.step, self.feed.shard)] if batch.count else []
            self._fill(batch, own + [self._share(*share) for share in claimed])

    def _share(self, rank: int, number: int) -> tuple[PlannedStep, Shard]:
        """Another rank's share of a step, which the board counts from 1."""
        assert self.feed.shard is not None
        return self.order.at(number - 1), replace(self.feed.shard, index=rank)

    def _fill(self, batch: Batch, parts: list[tuple[PlannedStep, Shard]]) -> None:
        """Make a batch of all these shares."""
        chosen = [(step.epoch, self.order.indices(step, shard)) for step, shard in parts]
        indices = torch.cat([found for _, found in chosen])
        if len(indices):
            batch.input, batch.target = self.feed.source.gather(indices)
            batch.count = len(indices)
            if self.feed.augment is not None:
                batch.keys = torch.cat([sample_keys(self.order.seed, epoch, found) for epoch, found in chosen])
