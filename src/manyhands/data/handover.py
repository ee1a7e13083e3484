"""Handing a worker's batch over to its rank: small tensors through the pipe, types of the user's own by value.

A worker's queue pickles plainly and in a thread: a class that the script itself defines is not found by its name on a rank,
and what cannot be pickled would be lost without a word, the rank waiting for it. Here it fails where it is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch import Tensor

from . import nest
from .stream import Part

PIPE_BYTES = 512 << 10  # larger batches go through shared memory


def handed_over(part: Part) -> Any:
    """A worker's part of a batch, as it is put into its queue; what is taken out is a `Part` again."""
    pair = small_by_pipe(part.pair)
    return Part(pair, part.ended) if all(kind in PLAIN for kind in _kinds(pair)) else _ByValue(pair, part.ended)


def small_by_pipe(batch: Any) -> Any:
    """A worker's batch, its tensors copied through the pipe if it is small.

    torch hands tensors over as shared memory, with a connection for each: that costs a step more than copying a small
    batch (benchmarks/handover.py).
    """
    if sum(tensor.nbytes for tensor in nest.leaves(batch)) > PIPE_BYTES:
        return batch
    return nest.each(batch, _by_pipe)


def _by_pipe(tensor: Tensor) -> Any:
    try:
        return _Copied(tensor.numpy())
    except (TypeError, RuntimeError):  # numpy does not know bfloat16, nor tensors with a gradient
        return tensor


class _Copied:
    """Bytes on the way; a tensor where they arrive."""

    def __init__(self, array: np.ndarray[Any, Any]):
        self.array = array

    def __reduce__(self) -> tuple[Any, ...]:
        return torch.from_numpy, (self.array,)


PLAIN = (tuple, list, dict, Tensor, _Copied, str, bytes, int, float, bool, type(None))


def _kinds(value: Any) -> Iterator[type]:
    yield type(value)
    for item in nest.children(value) or ():
        yield from _kinds(item)


class _ByValue:
    """A batch with types that the rank may not find by name: pickled here and now, beside its tensors."""

    def __init__(self, pair: tuple[Any, Any], ended: int):
        self.tensors: list[Any] = []
        self.rest = cloudpickle.dumps((nest.over(pair, self._lay_aside), ended))

    def _lay_aside(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor | _Copied):
            return leaf
        self.tensors.append(leaf)
        return _Place(len(self.tensors) - 1)

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (self.rest, self.tensors)


class _Place(int):
    """Where a tensor belongs."""


def _arrived(rest: bytes, tensors: list[Tensor]) -> Part:
    pair, ended = cloudpickle.loads(rest)
    return Part(nest.over(pair, lambda leaf: tensors[leaf] if isinstance(leaf, _Place) else leaf), ended)
