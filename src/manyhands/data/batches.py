"""Batches: the samples of one step for one rank.

Tensors in memory are indexed whole batches at a time. Any other Dataset is read sample by sample, in worker processes
if asked for (loading.py). All follow the same order, but for streams, which come in their own (stream.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from time import monotonic_ns
from typing import Any

import torch
from torch import Tensor

from . import nest
from .keys import sample_keys
from .loading import Auto, DatasetSource, Loading, Use
from .order import Order, PlannedStep, Shard
from .sources import Source, TensorSource
from .stream import ENDLESS, Part, StreamSource

BLOCK_BYTES, MOST_STEPS = 1 << 20, 64  # what is gathered at a time from tensors in memory


@dataclass(slots=True)
class Batch:
    """What a worker gets for one step.

    A rank whose shard is empty gets one borrowed sample with `count` 0: it can run the same operations as
    the others, and the weight 0 takes its gradient out again.
    """

    input: Any
    target: Any
    count: int  # samples of this rank
    step: PlannedStep
    keys: Tensor | None = None
    own: bool = True  # of this rank's own share; else it is made for another rank
    given_away: bool = False  # another rank makes this share: there is nothing to do but to move on

    @property
    def weight(self) -> float:
        """The share of this rank's mean loss in the mean over everything that goes into the update."""
        return self.count / self.step.group_total

    @property
    def update(self) -> bool:
        return self.step.update


class Batches:
    """The batches of one rank, epoch by epoch.

    `workers` is a number of processes or "auto", which tries up to `most_workers`; `tell` hears what to note in the
    record. Data in memory needs no workers.
    """

    def __init__(
        self,
        source: Source,
        order: Order,
        shard: Shard,
        keyed: bool,
        workers: int | str = 0,
        most_workers: int = 1,
        pinned: bool = False,
        tell: Callable[[str], None] = lambda note: None,
    ):
        self.source, self.order, self.shard, self.keyed = source, order, shard, keyed and shard.input
        self.pinned, self._tell, self._told = pinned, tell, False
        self._auto: Auto | None = None
        self._loading: Loading | None = None
        if isinstance(source, DatasetSource | StreamSource):
            if workers == "auto":
                self._auto = Auto(1 if isinstance(source, StreamSource) else most_workers, tell)
            self._loading = Loading(source, order, shard, 0 if self._auto else int(workers), pinned)
        elif workers == "auto":
            tell("loader_workers=auto keeps 0 (the data is in memory)")

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from step `first` on; worker processes begin at once."""
        if not (self.shard.input or self.shard.target):
            return self._empty(epoch, first)
        if self._loading is None:
            return self._gathered(epoch, first)
        return self._loaded(epoch, first, self._loading.start(epoch, first))

    def _empty(self, epoch: int, first: int) -> Iterator[Batch]:
        """A stage in the middle reads nothing, and only counts."""
        for step in self.order.steps(epoch, first):
            yield Batch(None, None, self._counted(step)[1], step)

    # ------------------------------------------------------------ data in memory

    def _gathered(self, epoch: int, first: int) -> Iterator[Batch]:
        """Several steps are gathered at a time where samples are small.

        After a step its code and data have left the processor's caches, so that a call costs the same for one batch
        as for many. A thread that gathers meanwhile takes the time from the step instead (benchmarks/ahead.py).
        """
        assert isinstance(self.source, TensorSource)
        steps = self.order.steps(epoch, first)
        while block := list(islice(steps, self._steps_at_a_time)):
            chosen, counts = zip(*(self.order.filled(step, self.shard) for step in block), strict=True)
            indices = torch.cat(chosen)
            input, target = self.source.gather(indices, self.shard.input, self.shard.target, self.pinned)
            keys = sample_keys(self.order.seed, epoch, indices) if self.keyed else None
            if len(block) == 1:
                yield Batch(input, target, counts[0], block[0], keys)
                continue
            stop = 0
            for step, own, count in zip(block, chosen, counts, strict=True):
                start, stop = stop, stop + len(own)
                yield Batch(
                    nest.rows(input, start, stop),
                    nest.rows(target, start, stop),
                    count,
                    step,
                    nest.rows(keys, start, stop),
                )

    @cached_property
    def _steps_at_a_time(self) -> int:
        assert isinstance(self.source, TensorSource)
        tensors = [*nest.leaves(self.source.input), *nest.leaves(self.source.target)]
        if any(tensor.layout != torch.strided for tensor in tensors):  # cannot be sliced
            return 1
        batch = sum(tensor[0].nbytes for tensor in tensors) * self.order.batch_size / self.shard.of
        return int(min(MOST_STEPS, max(1, BLOCK_BYTES // max(1, batch))))

    # ------------------------------------------------------------ sample by sample

    def _loaded(self, epoch: int, first: int, parts: Iterator[Part]) -> Iterator[Batch]:
        auto, waited, idle = self._auto, 0, False
        if auto is not None:
            auto.pause()
        for step in self.order.steps(epoch, first):
            asked = None
            if auto is not None and not auto.found:
                auto.step(monotonic_ns(), waited, idle)
                parts, asked = self._by(auto.workers, parts, step), Use.now()
            input, target = self._take(next(parts))
            keys, count = self._counted(step)
            if asked is not None:
                got = Use.now()
                waited, idle = got.clock - asked.clock, got.idle_since(asked)
            yield Batch(input, target, count, step, keys)

    def _by(self, workers: int, parts: Iterator[Part], step: PlannedStep) -> Iterator[Part]:
        """The same parts from `step` on, by another number of workers."""
        assert self._loading is not None
        if workers == self._loading.workers:
            return parts
        old = self._loading
        self._loading = Loading(old.source, self.order, self.shard, workers, self.pinned)
        return self._loading.start(step.epoch, step.number)

    def _take(self, part: Part) -> tuple[Any, Any]:
        if part.ended and not self._told:
            self._told = True
            promised = "" if len(self.source) == ENDLESS else f" of the {len(self.source):,} its length promises"
            self._tell(f"task.train ended after {part.ended:,} samples{promised}; it was read again from its start")
        return part.pair

    def _counted(self, step: PlannedStep) -> tuple[Tensor | None, int]:
        """Keys and number of this rank's samples; those of a stream are numbered as they come."""
        if isinstance(self.source, StreamSource):
            start, stop = self.shard.bounds(step.total)
            indices, count = torch.arange(step.start + start, step.start + max(stop, start + 1)), stop - start
        else:
            indices, count = self.order.filled(step, self.shard)
        return sample_keys(self.order.seed, step.epoch, indices) if self.keyed else None, count
