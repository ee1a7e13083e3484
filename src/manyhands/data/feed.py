"""The feed: what a process is given for each step. The only place where a batch is read, seeded, moved and augmented.

read      out of data on the GPU (resident.py), else by the host (batches.py), sent ahead to a GPU (pinned.py)
seed      dropout and the like draw from (seed, process, step): a resumed fit draws the same numbers
prepare   gather on the device or move there, then augment by the keys of the samples
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Protocol

import numpy as np
import torch

from ..record.clock import Clock
from . import nest
from .batches import Batch, Batches
from .keys import one_key
from .order import Order, PlannedStep, Shard
from .pinned import sent_ahead
from .resident import Resident, fits
from .sources import Source, TensorSource
from .stream import StreamSource


class Feed(Protocol):
    """What the training loop asks for."""

    def begin(self, steps: Sequence[PlannedStep]) -> None:
        """These steps of one epoch come next."""

    def next(self, step: PlannedStep) -> Batch | None:
        """The batch of a step, ready for the worker; None for a process that only serves."""

    def extra(self, last: PlannedStep) -> Iterator[Batch]:
        """Batches beyond this process's own, once it has made its last step of the epoch."""


class RankFeed:
    """The batches of one process; `shard` is None for one that reads nothing.

    `sharing` processes hold data on the same device; `workers` and `tell` are those of `Batches`. `draws` says that
    Python's or numpy's generators are drawn from in a step, so these are seeded too. After `keep` batches nothing is read
    any more: they are used again and again.
    """

    def __init__(
        self,
        source: Source,
        order: Order,
        shard: Shard | None,
        *,
        clock: Clock,
        device: torch.device,
        augment: Callable[[Any, Any], Any] | None = None,
        process: int = 0,
        sharing: int = 1,
        workers: int | str = 0,
        most_workers: int = 1,
        draws: bool = False,
        keep: int | None = None,
        tell: Callable[[str], None] = lambda note: None,
    ):
        self.source, self.order, self.shard, self.augment = source, order, shard, augment
        self.prepares = (
            True  # else `next` gives batches as they were read, for one who calls `prepare` when it needs to
        )
        self.resident: Resident | None = None  # where the data is on the device
        self._clock, self._device = clock, device
        self._process, self._draws = process, draws or not isinstance(source, TensorSource)
        self._host: Batches | None = None
        self._batches: Iterator[Batch] | None = None  # of the epoch
        self._keep: int | None = keep
        self._kept: list[Batch] = []
        if shard is None:
            return
        keyed = augment is not None
        if isinstance(source, TensorSource) and fits(source, device, sharing):
            self.resident = Resident(source, order, shard, keyed, device)
        else:
            self._host = Batches(source, order, shard, keyed, workers, most_workers, device.type == "cuda", tell)

    def begin(self, steps: Sequence[PlannedStep]) -> None:
        if self._keep is not None and len(self._kept) == self._keep:
            self._batches = self._again(steps)
            return
        start = steps[0].epoch, steps[0].number
        if self.resident is not None:
            self._batches = self.resident.epoch(*start)
        elif self._host is not None:
            self._batches = self._host.epoch(*start)
            if self._device.type == "cuda":
                self._batches = sent_ahead(self._batches, self._device)
            if self._keep is not None:
                self._batches = self._kept_of(self._batches, steps)

    def next(self, step: PlannedStep) -> Batch | None:
        batch = self.read()
        self.seed(step)  # after reading, which may have drawn numbers
        if batch is not None and self.prepares:
            self.prepare(batch)
        return batch

    def extra(self, last: PlannedStep) -> Iterator[Batch]:
        return iter(())

    def _kept_of(self, batches: Iterator[Batch], steps: Sequence[PlannedStep]) -> Iterator[Batch]:
        """Read as many batches as are kept; those are used for the other steps too."""
        read = min(len(steps), (self._keep or 0) - len(self._kept))
        for batch in islice(batches, read):
            self._kept.append(replace(batch))  # the step changes what it is given
            yield batch
        yield from self._again(steps[read:])

    def _again(self, steps: Sequence[PlannedStep]) -> Iterator[Batch]:
        for place, step in enumerate(steps):
            yield replace(self._kept[place % len(self._kept)], step=step)

    def read(self) -> Batch | None:
        """This process's next batch as it comes."""
        return next(self._batches) if self._batches is not None else None

    def seed(self, step: PlannedStep) -> None:
        value = step_seed(self.order.seed, self._process, step.before)
        if self._draws:
            random.seed(value)
            np.random.seed(value % 2**32)
        torch.default_generator.manual_seed(value)
        if self._device.type == "cuda":
            torch.cuda.default_generators[self._device.index or 0].manual_seed(value)

    def prepare(self, batch: Batch) -> None:
        """Gather the batch on the device or move it there, and augment it."""
        if self.resident is not None and batch.input is None and batch.target is None:
            self.resident.fetch(batch)
        elif self._device.type != "cpu":
            self._clock.enter("transfer")
            batch.input, batch.target, batch.keys = on_device((batch.input, batch.target, batch.keys), self._device)
        if self.augment is not None and batch.keys is not None:
            self._clock.enter("augment")
            batch.input = self.augment(batch.input, batch.keys)


def step_seed(seed: int, process: int, step: int) -> int:
    """63 bits of (seed, process, step); epochs below zero have no samples, so no sample's key is the same."""
    return one_key(seed, -1 - process, step) & 0x7FFF_FFFF_FFFF_FFFF


def on_device(value: Any, device: torch.device) -> Any:
    """A nest of tensors on a device; the host does not wait where it need not."""
    return nest.each(value, lambda tensor: tensor.to(device, non_blocking=True))


def each_once(source: Source, size: int, device: torch.device) -> Iterator[tuple[Any, Any, int]]:
    """Every sample once, in order, for evaluation: inputs and targets on the device, and how many."""
    for input, target, count in _in_order(source, size):
        yield *on_device((input, target), device), count


def _in_order(source: Source, size: int) -> Iterator[tuple[Any, Any, int]]:
    if isinstance(source, StreamSource):
        samples = source.samples(len(source))
        while part := list(islice(samples, size)):
            yield *source.collate(part), len(part)
        return
    for start in range(0, len(source), size):
        stop = min(start + size, len(source))
        if isinstance(source, TensorSource):
            yield *source.slice(start, stop), stop - start
        else:
            yield *source.gather(torch.arange(start, stop)), stop - start
