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
from collections.abc import Iterator
from dataclasses import replace

import torch

from ..data.augment import sample_keys
from ..data.batches import Batch
from ..data.order import Order, Shard, Step
from ..data.stream import StreamSource
from ..strategies.contract import Strategy
from ..strategies.job import Job
from ..world.rank import Rank

LOOK_AGAIN_SECONDS = 1e-3


class Takeover:
    """What one rank knows of the shares it may make for others, and others for it."""

    def __init__(self, job: Job, strategy: Strategy, rank: Rank, survive: bool, watched: bool):
        self.job, self.rank, self.survive = job, rank, survive
        self.order: Order = job.order
        self.shard: Shard | None = strategy.feed(rank)
        # on_step looks at every step of every rank in its order; a stream cannot be asked for another rank's samples
        self.helps = (
            strategy.traits.helps
            and rank.ranks > 1
            and self.order.accumulate == 1
            and not watched
            and not isinstance(job.train, StreamSource)
        )

    def begin(self, last: int) -> None:
        """An epoch begins, whose last step is `last` (steps are counted from 1 over the whole fit)."""
        if self.helps:
            self.rank.board.plan(self.rank.index, last)

    def is_taken(self, step: int) -> bool:
        """Whether another rank has taken this rank's share of the step it is about to make."""
        return self.helps and not self.rank.board.keep(self.rank.index, step)

    def add_to(self, batch: Batch, number: int) -> None:
        """Add shares of dead ranks to the batch of step `number`: two at a time, in an epoch's last all that are left."""
        if not self.survive or self.shard is None or not self.rank.board.anyone_lost:
            return
        last = batch.step.number + 1 == self.order.steps_per_epoch and not self.helps
        claimed = self.rank.board.claim(number, sys.maxsize if last else 2)
        if claimed:
            own = [(batch.step, self.shard)] if batch.count else []
            self._fill(batch, own + [self._share(*share) for share in claimed])

    def at_the_end(self, number: int) -> Iterator[tuple[int, Batch]]:
        """Shares of others, with the number of their step, until every rank is done or making its last."""
        while self.helps:
            taken = self.rank.board.take(number, self.survive)
            if taken is not None:
                step, shard = self._share(*taken)
                batch = Batch(None, None, 0, step, own=False)
                self._fill(batch, [(step, shard)])
                if batch.count:
                    yield taken[1], batch
            elif not self.survive or self.rank.board.all_finished(number):
                return
            else:
                with self.rank.clock.during("wait"):
                    time.sleep(LOOK_AGAIN_SECONDS)  # a rank that dies now leaves something to do

    def _share(self, rank: int, number: int) -> tuple[Step, Shard]:
        assert self.shard is not None
        epoch, within = divmod(number - 1, self.order.steps_per_epoch)
        return next(self.order.steps(epoch, within)), replace(self.shard, index=rank)

    def _fill(self, batch: Batch, parts: list[tuple[Step, Shard]]) -> None:
        """Make a batch of all these shares."""
        chosen = [(step.epoch, self.order.indices(step, part)) for step, part in parts]
        indices = torch.cat([found for _, found in chosen])
        if len(indices):
            batch.input, batch.target = self.job.train.gather(indices)
            batch.count = len(indices)
            if self.job.task.augment is not None:
                batch.keys = torch.cat([sample_keys(self.order.seed, epoch, found) for epoch, found in chosen])
