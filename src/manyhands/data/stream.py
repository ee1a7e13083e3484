"""Streams: samples of an IterableDataset, which come in an order of their own and cannot be asked for by number.

Every rank that needs samples reads the whole stream and keeps its shard of each global batch, so the global batches
are those of `single` and nobody has to talk. That costs each rank the reading of all samples; collating, transfer and
the step itself are shared as ever.

    stream           s0 s1 s2 s3 | s4 s5 s6 s7 | s8 s9          the last batch of an epoch: what its length leaves
    rank 0 of 2      s0 s1       | s4 s5       | s8
    rank 1 of 2            s2 s3 |       s6 s7 |    s9

The number of steps is agreed before the start: an epoch has as many samples as `len()` says; without a length there is
one epoch of `max_steps` steps. A stream that ends sooner is read again from its start, so no rank can wait for another
that has run out of samples; the record notes after how many samples that was.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from torch.utils.data import IterableDataset

from ..errors import BadInput
from . import nest
from .keys import one_key
from .order import Order, Shard
from .pairs import Pairs
from .process_state import seed_generators

ENDLESS = 1 << 60  # the samples of a stream that does not say: more than anybody reads


@dataclass(frozen=True, slots=True)
class Part:
    """A rank's part of one global batch, and after how many samples the stream had ended, if it did on the way."""

    pair: tuple[Any, Any]  # (input, target)
    ended: int = 0

    def pin_memory(self) -> Part:
        """What a DataLoader calls: torch's own walk through a batch passes over dataclasses and fails on some mappings."""
        return replace(self, pair=nest.each(self.pair, Tensor.pin_memory))


class StreamSource:
    """An IterableDataset as a source of batches."""

    def __init__(self, dataset: IterableDataset, collate: Pairs | None = None):
        self.dataset = dataset
        self.collate = collate or Pairs()
        self._samples = length(dataset)

    def __len__(self) -> int:
        return ENDLESS if self._samples is None else self._samples

    @property
    def endless(self) -> bool:
        """Whether the stream does not say how long it is."""
        return self._samples is None

    def gather(self, indices: Tensor) -> tuple[Any, Any]:
        """Samples by their place, for looking at the first few: everything before them is read too."""
        wanted = indices.tolist()
        samples = list(self.samples(max(wanted) + 1))
        if not samples:
            raise BadInput(NO_SAMPLES)
        return self.collate([samples[index] for index in wanted if index < len(samples)])

    def samples(self, most: int) -> Iterator[Any]:
        """One pass, at most this long."""
        for number, sample in enumerate(self.dataset, 1):
            yield sample
            if number == most:
                return

    def parts(self, order: Order, shard: Shard, epoch: int, first: int = 0) -> Iterator[Part]:
        """The shard of each global batch of an epoch, from step `first` on; the batches before are read and dropped.

        The generators are seeded before every batch, the same on every rank: a stream that shuffles or augments at
        random does it anew each epoch, and alike everywhere.
        """
        reading = _Reading(self.dataset)
        for step in order.steps(epoch):
            seed_generators(one_key(order.seed, epoch, step.number))
            samples = reading.take(step.total)
            if step.number >= first:
                start, stop = shard.bounds(step.total)
                yield Part(self.collate(samples[start:stop] or samples[:1]), reading.ended)
                reading.ended = 0


NO_SAMPLES = (
    "task.train is a stream that gave no samples; its __iter__ must start from the beginning each time it is called"
)


class _Reading:
    """Samples of a stream one after the other, from its start again where it ends."""

    def __init__(self, dataset: IterableDataset):
        self.dataset = dataset
        self.ended = 0  # after how many samples the last pass was over
        self._samples: Iterator[Any] | None = None
        self._taken = 0

    def take(self, count: int) -> list[Any]:
        """The next `count` samples."""
        found: list[Any] = []
        while len(found) < count:
            if self._samples is None:
                self._samples, self._taken = iter(self.dataset), 0
            for sample in self._samples:
                found.append(sample)
                self._taken += 1
                if len(found) == count:
                    return found
            if not self._taken:
                raise BadInput(NO_SAMPLES)
            self._samples, self.ended = None, self._taken
        return found


def length(dataset: IterableDataset) -> int | None:
    """The samples of one pass, where the stream says."""
    try:
        samples = len(dataset)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        return None
    return samples
