"""The order of the data: (seed, epoch) -> global batches -> shards.

Every strategy and every number of ranks sees the same global batches; a rank takes its shard of each. The
order is a pure function, so any step of any epoch can be asked for directly: that is all a resume needs.

    epoch's permutation   | batch 0        | batch 1        | ...  | last: what is left |
    batch over 3 ranks    | r0  | r1 | r2  |                              sizes differ by at most one
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import NamedTuple, overload

import numpy as np
import torch
from torch import Tensor


def shard_bounds(count: int, index: int, of: int) -> tuple[int, int]:
    """Where shard `index` of `of` begins and ends in `count` samples; sizes differ by at most one."""
    small, larger = divmod(count, of)
    start = index * small + min(index, larger)
    return start, start + small + (index < larger)


@dataclass(frozen=True)
class Shard:
    """Which samples a rank reads: one part of every global batch, or its own part of the data for good."""

    index: int = 0
    of: int = 1
    fixed: bool = False
    shares: tuple[float, ...] | None = None  # unequal shares, summing to one
    input: bool = True  # whether this rank needs the inputs, and the targets: a stage in the middle needs neither
    target: bool = True
    repeats: bool = False  # these samples are another rank's too, and counted there

    def bounds(self, count: int) -> tuple[int, int]:
        if self.shares is None:
            return shard_bounds(count, self.index, self.of)
        edges = np.rint(np.cumsum([0.0, *self.shares]) * count).astype(int)
        return int(edges[self.index]), int(edges[self.index + 1])


class PlannedStep(NamedTuple):
    """One step of a fit as it is planned: which samples, and how they weigh in the update they belong to."""

    epoch: int  # from 0
    number: int  # step within the epoch, from 0
    before: int  # steps of the whole fit before this one
    start: int  # where the global batch begins in the epoch's permutation
    total: int  # samples of the global batch
    group_total: int  # samples of all batches accumulated into one update
    update: bool  # the weights are written after this step


@dataclass(frozen=True)
class Order:
    """Global batches of `batch_size` samples out of `samples`, shuffled anew every epoch."""

    samples: int
    batch_size: int
    seed: int
    accumulate: int = 1
    drop_last: bool = False  # an epoch leaves out what fills no batch, other samples each time

    @property
    def read(self) -> int:
        """The samples of an epoch: all, or as many as fill batches."""
        return self.samples - self.samples % self.batch_size if self.drop_last else self.samples

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.read // self.batch_size)

    @property
    def updates_per_epoch(self) -> int:
        return -(-self.steps_per_epoch // self.accumulate)

    def steps(self, epoch: int, first: int = 0) -> Iterator[PlannedStep]:
        """The steps of an epoch, from step `first` on."""
        per_epoch, samples = self.steps_per_epoch, self.read
        for number in range(first, per_epoch):
            start = number * self.batch_size
            group = number // self.accumulate
            group_start = group * self.accumulate * self.batch_size
            group_end = min((group + 1) * self.accumulate * self.batch_size, samples)
            yield PlannedStep(
                epoch,
                number,
                epoch * per_epoch + number,
                start,
                min(self.batch_size, samples - start),
                group_end - group_start,
                (number + 1) % self.accumulate == 0 or number + 1 == per_epoch,
            )

    def epochs(self, done: int, total: int) -> Iterator[Steps]:
        """The steps of a fit after the first `done` and up to `total`, an epoch at a time."""
        while done < total:
            end = min(total, done - done % self.steps_per_epoch + self.steps_per_epoch)
            yield Steps(self, range(done, end))
            done = end

    def at(self, index: int) -> PlannedStep:
        """One step of the fit, counted from 0."""
        return next(self.steps(*divmod(index, self.steps_per_epoch)))

    def samples_up_to(self, step: PlannedStep) -> int:
        """Samples of the whole fit behind all ranks after this step."""
        return step.epoch * self.read + step.start + step.total

    def indices(self, step: PlannedStep, shard: Shard = Shard()) -> Tensor:  # noqa: B008 (a frozen value)
        """The samples of one step that belong to a shard."""
        if shard.fixed:
            return self._fixed_indices(step, shard)
        start, stop = shard.bounds(step.total)
        return permutation(self.samples, self.seed, step.epoch)[step.start + start : step.start + stop]

    def filled(self, step: PlannedStep, shard: Shard) -> tuple[Tensor, int]:
        """Indices, and how many count: an empty shard borrows the first sample of the global batch."""
        indices = self.indices(step, shard)
        return (indices, len(indices)) if len(indices) else (self.indices(step)[:1], 0)

    def _fixed_indices(self, step: PlannedStep, shard: Shard) -> Tensor:
        """A rank that owns its part of the data spreads it over the steps of the epoch."""
        first, last = shard.bounds(self.samples)
        own = permutation(last - first, self.seed, step.epoch) + first
        begin, end = shard.bounds(self.read)
        start, stop = shard_bounds(end - begin, step.number, self.steps_per_epoch)
        return own[start:stop]


@dataclass(frozen=True)
class Steps(Sequence[PlannedStep]):
    """Steps of one epoch, planned when they are asked for: there may be millions."""

    order: Order
    numbers: range  # of the steps, counted from the fit's first

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> PlannedStep: ...
    @overload
    def __getitem__(self, index: slice) -> Steps: ...
    def __getitem__(self, index: int | slice) -> PlannedStep | Steps:
        if isinstance(index, slice):
            return Steps(self.order, self.numbers[index])
        return self.order.at(self.numbers[index])

    def __iter__(self) -> Iterator[PlannedStep]:
        if not self.numbers:
            return iter(())
        return islice(self.order.steps(*divmod(self.numbers[0], self.order.steps_per_epoch)), len(self.numbers))


@lru_cache(maxsize=4)
def permutation(samples: int, seed: int, epoch: int) -> Tensor:
    """The order of one epoch; the same on every rank, without talking."""
    generator = np.random.Generator(np.random.Philox(key=np.array([seed, epoch], dtype=np.uint64)))
    return torch.from_numpy(generator.permutation(samples))
