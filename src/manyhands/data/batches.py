"""Batches: the samples of one step for one rank.

Tensors in memory are indexed a whole batch at a time. Any map-style Dataset goes through torch's DataLoader,
with worker processes if asked for. Both follow the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from ..errors import BadInput
from . import nest
from .augment import sample_keys
from .order import Order, Shard, Step


@dataclass(slots=True)
class Batch:
    """What a worker gets for one step.

    A rank whose shard is empty gets one borrowed sample with `count` 0: it can run the same operations as
    the others, and the weight 0 takes its gradient out again.
    """

    input: Any
    target: Any
    count: int  # samples of this rank
    step: Step
    keys: Tensor | None = None

    @property
    def weight(self) -> float:
        """The share of this rank's mean loss in the mean over everything that goes into the update."""
        return self.count / self.step.group_total

    @property
    def update(self) -> bool:
        return self.step.update


class Source(Protocol):
    """Where samples come from."""

    def __len__(self) -> int: ...
    def gather(self, indices: Tensor) -> tuple[Any, Any]: ...


class TensorSource:
    """Samples in memory: nests of tensors whose first dimension counts samples."""

    def __init__(self, input: Any, target: Any):
        self.input, self.target = input, target
        self._samples = nest.count(input)

    def __len__(self) -> int:
        return self._samples

    def gather(self, indices: Tensor, input: bool = True, target: bool = True) -> tuple[Any, Any]:
        return (
            nest.each(self.input, lambda tensor: tensor.index_select(0, indices)) if input else None,
            nest.each(self.target, lambda tensor: tensor.index_select(0, indices)) if target else None,
        )

    def slice(self, start: int, stop: int) -> tuple[Any, Any]:
        """A stretch of samples without copying (evaluation)."""
        return (
            nest.each(self.input, lambda tensor: tensor[start:stop]),
            nest.each(self.target, lambda tensor: tensor[start:stop]),
        )


class DatasetSource:
    """Samples one by one out of a map-style Dataset, collated into batches."""

    def __init__(self, dataset: Dataset, collate: Callable[[list[Any]], Any] | None):
        self.dataset = dataset
        self.collate = collate or default_collate

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def gather(self, indices: Tensor) -> tuple[Any, Any]:
        return pair(self.collate([self.dataset[int(index)] for index in indices]))


def pair(collated: Any) -> tuple[Any, Any]:
    """Samples are (input, target)."""
    if not isinstance(collated, tuple | list) or len(collated) != 2:
        raise BadInput(
            f"samples must be (input, target) pairs (found {type(collated).__name__}); return two values, or set task.collate"
        )
    return collated[0], collated[1]


def make_source(data: Any, collate: Callable[[list[Any]], Any] | None, field: str) -> Source:
    """Wrap what the user gave as `train` or `test`."""
    if isinstance(data, tuple | list) and len(data) == 2 and not isinstance(data, Dataset):
        return _tensor_source(data[0], data[1], field)
    if isinstance(data, torch.utils.data.TensorDataset) and len(data.tensors) == 2 and collate is None:
        return _tensor_source(data.tensors[0], data.tensors[1], field)
    if isinstance(data, torch.utils.data.IterableDataset):
        raise BadInput(f"task.{field} is an IterableDataset, which has no length; give a map-style Dataset or tensors")
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, Tensor):
        if len(data) == 0:
            raise BadInput(f"task.{field} holds no samples (length 0)")
        return DatasetSource(data, collate)
    raise BadInput(
        f"task.{field} must be (inputs, targets), a map-style Dataset or a factory (found {type(data).__name__})"
    )


def _tensor_source(input: Any, target: Any, field: str) -> Source:
    samples = None
    for part, value in (("inputs", input), ("targets", target)):
        found = False
        for tensor in nest.leaves(nest_of_arrays(value)):
            found = True
            if tensor.dim() == 0:
                raise BadInput(
                    f"task.{field} {part} hold a tensor without dimensions; the first one must count samples"
                )
            if samples is None:
                samples = int(tensor.shape[0])
            elif tensor.shape[0] != samples:
                raise BadInput(
                    f"task.{field} lengths differ: {samples} and {tensor.shape[0]} ({part}); every tensor needs one row a sample"
                )
        if not found:
            raise BadInput(f"task.{field} {part} hold no tensor (found {type(value).__name__})")
    if samples == 0:
        raise BadInput(f"task.{field} holds no samples (length 0)")
    return TensorSource(nest_of_arrays(input), nest_of_arrays(target))


def nest_of_arrays(value: Any) -> Any:
    """numpy arrays become tensors over the same memory."""
    import numpy as np

    if isinstance(value, np.ndarray):
        return torch.from_numpy(value)
    if isinstance(value, dict):
        return {key: nest_of_arrays(item) for key, item in value.items()}
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        return type(value)(nest_of_arrays(item) for item in value)
    return value


class Batches:
    """The batches of one rank, epoch by epoch."""

    def __init__(self, source: Source, order: Order, shard: Shard, keyed: bool, workers: int = 0):
        self.source, self.order, self.shard, self.keyed = source, order, shard, keyed and shard.input
        self._plan = _Plan(order, shard)
        self._loader: DataLoader | None = None
        if isinstance(source, DatasetSource) and workers and (shard.input or shard.target):
            self._loader = DataLoader(
                source.dataset,
                batch_sampler=self._plan,
                collate_fn=source.collate,
                num_workers=workers,
                persistent_workers=True,
            )

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from step `first` on."""
        loaded = self._loaded(epoch, first)
        for step in self.order.steps(epoch, first):
            indices = self.order.indices(step, self.shard)
            count = len(indices)
            input, target = next(loaded) if loaded else self._gather(self._plan.filled(step, indices))
            keys = sample_keys(self.order.seed, epoch, self._plan.filled(step, indices)) if self.keyed else None
            yield Batch(input, target, count, step, keys)

    def _gather(self, indices: Tensor) -> tuple[Any, Any]:
        """Only what this rank needs is read."""
        if not (self.shard.input or self.shard.target):
            return None, None
        if isinstance(self.source, TensorSource):
            return self.source.gather(indices, self.shard.input, self.shard.target)
        return self.source.gather(indices)

    def _loaded(self, epoch: int, first: int) -> Iterator[tuple[Any, Any]] | None:
        if self._loader is None:
            return None
        self._plan.at(epoch, first)
        return (pair(collated) for collated in self._loader)


class _Plan:
    """The index lists of an epoch, as the batch sampler of a DataLoader that outlives epochs."""

    def __init__(self, order: Order, shard: Shard):
        self.order, self.shard = order, shard
        self.epoch = self.first = 0

    def at(self, epoch: int, first: int) -> None:
        self.epoch, self.first = epoch, first

    def filled(self, step: Step, indices: Tensor) -> Tensor:
        """An empty shard borrows the first sample of the global batch."""
        return indices if len(indices) else self.order.indices(step)[:1]

    def __iter__(self) -> Iterator[list[int]]:
        for step in self.order.steps(self.epoch, self.first):
            yield self.filled(step, self.order.indices(step, self.shard)).tolist()

    def __len__(self) -> int:
        return self.order.steps_per_epoch - self.first
