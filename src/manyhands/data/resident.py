"""Data that lives on the GPU: the whole training set there once, batches gathered by index where they are used.

Images stay uint8. For each epoch the order of this rank's samples and their keys are put on the device in one go,
so that a batch is a slice of them, and a step needs nothing from the host.

    inputs, targets       all samples, as they are
    indices | keys        of this epoch:  step 0 | step 1 | ...       one stretch of rows a step
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import nest
from .batches import Batch
from .keys import sample_keys
from .order import Order, PlannedStep, Shard, permutation
from .sources import Source, TensorSource

SHARE_OF_FREE = 0.4  # of the device's free memory; the rest is the model's and its activations'


def fits(source: Source, device: torch.device, sharing: int = 1) -> bool:
    """Whether these samples can live on the device, `sharing` processes having a copy each."""
    if device.type != "cuda" or not isinstance(source, TensorSource):
        return False
    size = sum(tensor.numel() * tensor.element_size() for tensor in nest.leaves((source.input, source.target)))
    free, _ = torch.cuda.mem_get_info(device)
    return size * sharing <= SHARE_OF_FREE * free


class Resident:
    """The batches of one rank out of data on its device; the same samples in the same order as `Batches`."""

    def __init__(self, source: TensorSource, order: Order, shard: Shard, keyed: bool, device: torch.device):
        self.order, self.shard, self.device = order, shard, device
        self.keyed = keyed and shard.input
        self.input, self.target = (
            nest.each(value, lambda tensor: tensor.to(device)) if wanted else None
            for value, wanted in ((source.input, shard.input), (source.target, shard.target))
        )
        self._places = self._places_in_order()
        self._counts = [len(order.indices(step, shard)) for step in order.steps(0)]
        self._starts = [0, *np.cumsum([max(1, count) for count in self._counts]).tolist()]
        self.indices = torch.zeros(self._starts[-1], dtype=torch.int64, device=device)
        self.keys: Tensor | None = torch.zeros_like(self.indices) if self.keyed else None
        self.at = -1  # the epoch whose order is on the device

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from step `first` on; nothing is gathered before `fetch`."""
        self.begin(epoch)
        for step in self.order.steps(epoch, first):
            yield Batch(None, None, self._counts[step.number], step)

    def count_of(self, step: PlannedStep) -> int:
        """How many samples of a step are this rank's."""
        return self._counts[step.number]

    def start_of(self, step: PlannedStep) -> int:
        """The row of `indices` where a step's samples begin."""
        return self._starts[step.number]

    def fetch(self, batch: Batch) -> None:
        """Gather a batch on the device."""
        start = self._starts[batch.step.number]
        stop = self._starts[batch.step.number + 1]
        batch.input, batch.target = self.gather(self.indices[start:stop])
        if self.keys is not None:
            batch.keys = self.keys[start:stop]

    def gather(self, indices: Tensor) -> tuple[Any, Any]:
        return (
            nest.each(self.input, lambda tensor: tensor.index_select(0, indices)),
            nest.each(self.target, lambda tensor: tensor.index_select(0, indices)),
        )

    def begin(self, epoch: int) -> None:
        """Put the order of an epoch on the device, in place where a captured step reads it."""
        if epoch == self.at:
            return
        self.at = epoch
        indices = self._of_epoch(epoch)
        self.indices.copy_(indices)
        if self.keys is not None:
            self.keys.copy_(sample_keys(self.order.seed, epoch, indices))

    def _of_epoch(self, epoch: int) -> Tensor:
        if self.shard.fixed:
            return torch.cat([self.order.filled(step, self.shard)[0] for step in self.order.steps(epoch)])
        shuffled = permutation(self.order.samples, self.order.seed, epoch)
        return shuffled[: self.order.read] if self._places is None else shuffled[self._places]

    def _places_in_order(self) -> Tensor | None:
        """Where this rank's samples stand in the permutation of any epoch; None where it reads them all."""
        if self.shard.fixed or (self.shard.of == 1 and self.shard.shares is None):
            return None
        places = []
        for step in self.order.steps(0):
            start, stop = self.shard.bounds(step.total)
            places.append(
                torch.arange(step.start + start, step.start + stop) if stop > start else torch.tensor([step.start])
            )
        return torch.cat(places)
