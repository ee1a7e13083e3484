"""Sources: where samples come from. Tensors in memory, a Dataset (loading.py), or a stream (stream.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from ..errors import BadInput
from . import nest
from .loading import DatasetSource
from .stream import StreamSource


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

    def gather(self, indices: Tensor, input: bool = True, target: bool = True, pinned: bool = False) -> tuple[Any, Any]:
        """Rows by index; in pinned memory, which torch keeps and hands out again, where a GPU will copy them."""

        def rows(tensor: Tensor) -> Tensor:
            if not pinned or tensor.device.type != "cpu":
                return tensor.index_select(0, indices)
            into = torch.empty((len(indices), *tensor.shape[1:]), dtype=tensor.dtype, pin_memory=True)
            return torch.index_select(tensor, 0, indices, out=into)

        return nest.each(self.input, rows) if input else None, nest.each(self.target, rows) if target else None

    def slice(self, start: int, stop: int) -> tuple[Any, Any]:
        """A stretch of samples without copying (evaluation)."""
        return nest.rows(self.input, start, stop), nest.rows(self.target, start, stop)


def make_source(data: Any, collate: Callable[[list[Any]], Any] | None, field: str) -> Source:
    """Wrap what the user gave as `train` or `test`."""
    if isinstance(data, tuple | list) and len(data) == 2 and not isinstance(data, Dataset):
        return _tensor_source(data[0], data[1], field)
    if isinstance(data, TensorDataset) and len(data.tensors) == 2 and collate is None:
        return _tensor_source(data.tensors[0], data.tensors[1], field)
    if isinstance(data, IterableDataset):
        return _stream_source(data, collate, field)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, Tensor):
        if len(data) == 0:
            raise BadInput(f"task.{field} holds no samples (length 0)")
        return DatasetSource(data, collate)
    raise BadInput(f"task.{field} must be (inputs, targets), a Dataset or a factory (found {type(data).__name__})")


def _stream_source(data: IterableDataset, collate: Callable[[list[Any]], Any] | None, field: str) -> Source:
    source = StreamSource(data, collate)
    if len(source) == 0:
        raise BadInput(f"task.{field} holds no samples (length 0)")
    if source.endless and field == "test":
        raise BadInput("task.test is a stream that does not say where it ends; give it a __len__")
    return source


def _tensor_source(input: Any, target: Any, field: str) -> Source:
    input, target = (nest.over(value, _as_tensor) for value in (input, target))
    samples = None
    for part, value in (("inputs", input), ("targets", target)):
        if nest.first(value) is None:
            raise BadInput(f"task.{field} {part} hold no tensor (found {type(value).__name__})")
        for tensor in nest.leaves(value):
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
    if samples == 0:
        raise BadInput(f"task.{field} holds no samples (length 0)")
    return TensorSource(input, target)


def _as_tensor(leaf: Any) -> Any:
    """A numpy array becomes a tensor over the same memory."""
    return torch.from_numpy(leaf) if isinstance(leaf, np.ndarray) else leaf
