"""Nests of tensors: inputs and targets may be a tensor, or tuples, lists and dicts of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from ..errors import BadInput


def each(value: Any, function: Callable[[Tensor], Any]) -> Any:
    """The same nest with `function` applied to every tensor."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: each(item, function) for key, item in value.items()}
    if isinstance(value, tuple):
        items = [each(item, function) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, list):
        return [each(item, function) for item in value]
    return value


def rows(value: Any, start: int, stop: int) -> Any:
    """Some of the samples, without copying."""
    return each(value, lambda tensor: tensor[start:stop])


def pair(collated: Any) -> tuple[Any, Any]:
    """Samples are (input, target)."""
    if not isinstance(collated, tuple | list) or len(collated) != 2:
        raise BadInput(
            f"samples must be (input, target) pairs (found {type(collated).__name__}); return two values, or set task.collate"
        )
    return collated[0], collated[1]


def leaves(value: Any) -> Iterator[Tensor]:
    """Every tensor of a nest, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from leaves(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from leaves(item)


def first(value: Any) -> Tensor | None:
    return next(leaves(value), None)


def count(value: Any) -> int:
    """How many samples a nest holds: the first dimension of its first tensor."""
    tensor = first(value)
    return int(tensor.shape[0]) if tensor is not None and tensor.dim() else 0


def part(value: Any, rows: slice) -> Any:
    """Some of the samples of a nest, as views."""
    return each(value, lambda tensor: tensor[rows])
