"""Sources: where samples come from. Tensors in memory, a Dataset (loading.py), or a stream (stream.py).

In memory are (inputs, targets), a single tensor, a tuple of tensors, a TensorDataset, and a mapping or dataclass of tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from ..errors import BadInput
from . import nest
from .collate import numbers
from .loader_parts import LoaderParts
from .loading import DatasetSource
from .pairs import Pairs
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


def make_source(
    data: Any, collate: Callable[[list[Any]], Any] | None, field: str, pairs: Pairs | None = None
) -> Source:
    """Wrap what the user gave as `train` or `test`; `pairs` says how it becomes (input, target)."""
    if isinstance(data, LoaderParts):
        data, collate = data.dataset, data.collate or collate
    pairs = replace(pairs or Pairs(), collate=collate)
    if (columns := _in_memory(data, pairs)) is not None:
        return _tensor_source(columns, pairs, field)
    if isinstance(data, IterableDataset):
        return _stream_source(data, pairs, field)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        if len(data) == 0:
            raise BadInput(f"task.{field} holds no samples (length 0)")
        return DatasetSource(data, pairs)
    raise BadInput(f"task.{field} must be (inputs, targets), a Dataset or a factory (found {type(data).__name__})")


def _in_memory(data: Any, pairs: Pairs) -> Any | None:
    """The columns of data that is whole in memory; None for what is read sample by sample."""
    if isinstance(data, TensorDataset):
        return data.tensors if pairs.collate is None else None
    if isinstance(data, Dataset):
        return None
    if isinstance(data, tuple | list) and len(data) == 2 and pairs.target is None:
        return data
    if isinstance(data, Tensor | np.ndarray):
        return data
    if isinstance(data, tuple) and data and all(isinstance(column, Tensor | np.ndarray) for column in data):
        return data
    if isinstance(data, Mapping) and all(isinstance(key, str) for key in data):
        return data
    return data if nest.attribute_names(data) is not None and not hasattr(data, "__getitem__") else None


def _stream_source(data: IterableDataset, pairs: Pairs, field: str) -> Source:
    source = StreamSource(data, pairs)
    if len(source) == 0:
        raise BadInput(f"task.{field} holds no samples (length 0)")
    if source.endless and field == "test":
        raise BadInput("task.test is a stream that does not say where it ends; give it a __len__")
    return source


def _tensor_source(columns: Any, pairs: Pairs, field: str) -> Source:
    if isinstance(columns, Mapping):
        if not columns:
            raise BadInput(f"task.{field} holds no samples (an empty {type(columns).__name__})")
        columns = nest.rebuilt(columns, [_column(name, values, field) for name, values in columns.items()])
    input, target = pairs.split(nest.over(columns, _as_tensor))
    samples = None
    for part, value in (("inputs", input), ("targets", target)):
        if nest.first(value) is None and (part == "inputs" or value is not None):
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
                    f"task.{field} lengths differ: {samples} and {tensor.shape[0]} ({part}); every tensor needs one row per sample"
                )
    if samples == 0:
        raise BadInput(f"task.{field} holds no samples (length 0)")
    return TensorSource(input, target)


def _column(name: str, values: Any, field: str) -> Any:
    """One entry of a mapping: tensors, or a list of numbers as a tokenizer gives it."""
    found = numbers(values) if isinstance(values, list) else values
    if values is None or nest.first(nest.over(found, _as_tensor)) is not None:
        return found
    if isinstance(values, list):
        raise BadInput(
            f'task.{field}["{name}"] is a list that is no table of numbers (texts, or rows of different lengths); '
            "pad it or leave it out, or give a list of samples"
        )
    raise BadInput(
        f'task.{field}["{name}"] is a {type(values).__name__}, not a tensor with one row per sample; where that is a '
        f'part of the data, give it alone: {field}=data["{name}"]'
    )


def _as_tensor(leaf: Any) -> Any:
    """A numpy array becomes a tensor over the same memory."""
    return torch.from_numpy(leaf) if isinstance(leaf, np.ndarray) else leaf
