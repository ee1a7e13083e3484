"""Nests of tensors: a tensor, or tuples, lists, slices, mappings, dataclasses and namespaces of them, however deep.

What is made from a nest keeps its types: a named tuple stays one, and so does a mapping or dataclass of the user's own.
Everything that is not one of these is a leaf and is handed on as it is. All code that walks through nests does it here.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping
from types import SimpleNamespace
from typing import Any

from torch import Size, Tensor
from torch.fx.immutable_collections import immutable_dict, immutable_list


class Leaf:
    """Base of dataclasses that are one thing, not a nest."""

    __slots__ = ()


def children(value: Any) -> list[Any] | None:
    """What a nest holds, one level down; None for a leaf."""
    if isinstance(value, Tensor | Leaf):  # most are: asked first
        return None
    if isinstance(value, tuple | list) and not isinstance(value, Size):
        return list(value)
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, slice):
        return [value.start, value.stop, value.step]
    names = attribute_names(value)
    return None if names is None else [getattr(value, name) for name in names]


def attribute_names(value: Any) -> list[str] | None:
    """Of a dataclass (fields that were never set are none of its own) or a namespace; None for anything else."""
    if isinstance(value, SimpleNamespace):
        return list(vars(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type | Leaf):
        return [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
    return None


def rebuilt(value: Any, items: list[Any]) -> Any:
    """A nest like `value` that holds other items; torch.fx's immutable lists and dictionaries become plain ones."""
    if isinstance(value, tuple):
        if hasattr(value, "_fields"):
            return type(value)(*items)
        return tuple(items) if type(value) is tuple else type(value)(items)
    if isinstance(value, list):
        return items if type(value) in (list, immutable_list) else type(value)(items)
    if isinstance(value, Mapping):
        return _mapping(value, dict(zip(value, items, strict=True)))
    if isinstance(value, slice):
        return slice(*items)
    made = copy.copy(value)  # not made anew: a constructor may do more than to store, or ask for less
    for name, item in zip(attribute_names(value) or (), items, strict=True):
        object.__setattr__(made, name, item)  # frozen ones too
    return made


def _mapping(value: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """A mapping like `value` with these entries, which may be fewer."""
    if type(value) in (dict, immutable_dict):
        return items
    if not isinstance(value, MutableMapping):
        return type(value)(items)  # type: ignore[call-arg]
    if isinstance(value, dict) and dataclasses.is_dataclass(value):  # transformers' outputs: entries are fields as well
        made: Any = type(value).__new__(type(value))
        vars(made).update(vars(value), **{field.name: None for field in dataclasses.fields(value)})
    else:
        made = copy.copy(value)
        if list(made) != list(items):
            made.clear()
    for key, item in items.items():
        made[key] = item
    return made


def without(value: Any, keys: Collection[str]) -> Any:
    """The same mapping without some of its entries; what has a fixed set of fields holds None there."""
    if isinstance(value, Mapping):
        return _mapping(value, {key: item for key, item in value.items() if key not in keys})
    names = attribute_names(value) or []
    return rebuilt(value, [None if name in keys else getattr(value, name) for name in names])


def over(value: Any, function: Callable[[Any], Any]) -> Any:
    """The same nest with `function` applied to every leaf, whatever it is."""
    inner = children(value)
    return function(value) if inner is None else rebuilt(value, [over(item, function) for item in inner])


def each(value: Any, function: Callable[[Tensor], Any]) -> Any:
    """The same nest with `function` applied to every tensor."""
    return over(value, lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf)


def items(value: Any) -> Iterator[Any]:
    """Every leaf of a nest, in order."""
    inner = children(value)
    if inner is None:
        yield value
        return
    for item in inner:
        yield from items(item)


def leaves(value: Any) -> Iterator[Tensor]:
    """Every tensor of a nest, in order."""
    return (leaf for leaf in items(value) if isinstance(leaf, Tensor))


def opaque(value: Any) -> Any | None:
    """The first leaf that holds tensors where nobody can reach them: an object of a class of its own."""
    return next((leaf for leaf in items(value) if not isinstance(leaf, Tensor) and _hides(leaf, 3)), None)


def _hides(leaf: Any, depth: int) -> bool:
    inside = list(items(attributes(leaf))) if depth else []
    return any(isinstance(item, Tensor) or _hides(item, depth - 1) for item in inside)


def attributes(leaf: Any) -> list[Any]:
    """What an object of a class of its own holds; nothing for classes, functions and other things that can be called."""
    if isinstance(leaf, type) or callable(leaf):
        return []
    names = [*getattr(leaf, "__dict__", ()), *getattr(type(leaf), "__slots__", ())]
    return [getattr(leaf, name, None) for name in names]


def rows(value: Any, start: int, stop: int) -> Any:
    """Some of the samples, without copying, of a nest whose every tensor counts samples first."""
    return each(value, lambda tensor: tensor[start:stop])


def first(value: Any) -> Tensor | None:
    return next(leaves(value), None)


def count(value: Any) -> int:
    """How many samples a nest holds whose every tensor counts them first."""
    tensor = first(value)
    return int(tensor.shape[0]) if tensor is not None and tensor.dim() else 0
