"""Which samples are tried: the first of the training's order, with some that tell more because they hold other numbers.

A loss may pass over a target (-100, a padding token) or weigh a class of its own. Where the first batch happens to hold
none of these it looks like a mean over samples, and a later batch shows that it is not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

import torch
from torch import Tensor

from ...data import nest
from ...data.keys import sample_keys
from ...data.loading import DatasetSource
from ...data.order import permutation
from ...data.process_state import seeded
from ...data.sources import TensorSource
from ...data.stream import StreamSource
from ...strategies.job import Job
from .passes import Samples

READ_AHEAD, READING_SECONDS = 8, 0.02  # times the samples that are tried; a dataset that decodes images reads no more
NUMBERS = 1_000_000  # of each tensor are looked at: some milliseconds
Take = Callable[[Sequence[int]], Samples]  # some of the samples that were read, by their places


def read_samples(job: Job, count: int) -> tuple[int, Take]:
    """The first samples of the training's order with some that tell more, and the way to take some as a rank gets them."""
    count = min(count, len(job.train))
    stream = isinstance(job.train, StreamSource)
    indices = torch.arange(count) if stream else permutation(len(job.train), job.task.seed, 0)[:count]
    if isinstance(job.train, TensorSource):
        indices = with_rare_values([job.train.input, job.train.target], indices, len(job.train))
    elif isinstance(job.train, DatasetSource):
        indices = _rare_in_dataset(job, job.train, count)
    keys = sample_keys(job.order.seed, 0, indices)
    samples: list[Any] = []
    with seeded(job.task.seed):
        if isinstance(job.train, StreamSource):
            samples = list(job.train.samples(count))
        elif isinstance(job.train, DatasetSource):
            samples = job.train.samples(indices, keys)

    def take(places: Sequence[int]) -> Samples:
        chosen = torch.tensor(list(places))
        if isinstance(job.train, DatasetSource | StreamSource):
            pair = job.train.collate([samples[place] for place in places])
        else:
            pair = job.train.gather(indices[chosen])
        return Samples(*pair, keys[chosen], len(places))

    return len(samples) or count, take


def _rare_in_dataset(job: Job, train: DatasetSource, count: int) -> Tensor:
    """The same choice from as many samples as can be read in no time."""
    order = permutation(len(train), job.task.seed, 0)[: READ_AHEAD * count]
    keys = sample_keys(job.order.seed, 0, order)
    began, ahead = monotonic(), []  # not the processor's time: a dataset may wait for a disk
    with seeded(job.task.seed), suppress(Exception):  # what cannot be read is refused, or named by the ranks
        for start in range(0, len(order), count):
            ahead += train.samples(order[start : start + count], keys[start : start + count])
            if monotonic() - began > READING_SECONDS:
                break
        return order[with_rare_values(train.collate(ahead), torch.arange(count), len(ahead))]
    return order[:count]


def with_rare_values(data: Any, indices: Tensor, samples: int) -> Tensor:
    """The indices, up to half of them exchanged for samples with values that the others lack, the rarest first."""
    telling: list[int] = []
    for column in nest.leaves(data):
        whole_numbers = not column.is_floating_point() and not column.is_complex() and column.layout == torch.strided
        if whole_numbers and column.numel() and column.dim() and len(column) == samples:
            head = column[: max(NUMBERS // max(column[0].numel(), 1), 1)].flatten(1 if column.dim() > 1 else 0).cpu()
            telling += _places_of_extremes(head) if head.dim() > 1 else _places_of_missing(head, column[indices].cpu())
    known = set(indices.tolist())
    chosen = [place for place in dict.fromkeys(telling) if place not in known][: len(indices) // 2]
    return torch.cat([indices[: len(indices) - len(chosen)], torch.tensor(chosen, dtype=indices.dtype)])


def _places_of_missing(column: Tensor, there: Tensor) -> list[int]:
    """The first sample of each value that is not there."""
    values, counts = column.unique(return_counts=True)
    missing = ~torch.isin(values, there)
    rarest = values[missing][counts[missing].argsort()][:8]
    return [int((column == value).to(torch.uint8).argmax()) for value in rarest]


def _places_of_extremes(rows: Tensor) -> list[int]:
    """The rows with the most of the smallest and of the largest number: padding is one of these."""
    return [int((rows == value).sum(1).argmax()) for value in (rows.min(), rows.max())]
