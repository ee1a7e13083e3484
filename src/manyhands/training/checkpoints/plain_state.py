"""State as plain data: any nest of numbers, strings and tensors as JSON, with the tensors laid aside by name.

JSON knows no tuples, no keys but strings and no infinity; those are written as an object with one marked key, so
that what is read back equals what was written. Anything else is refused by its name: it could only be pickled.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from ...errors import BadInput

_TENSOR, _TUPLE, _PAIRS, _COUNTER, _FLOAT = "$tensor", "$tuple", "$pairs", "$counter", "$float"


def take_apart(value: Any, tensors: dict[str, Tensor], root: str, path: str = "") -> Any:
    """The JSON side of a nest; its tensors go into `tensors` under their path."""

    def inner(item: Any, key: object) -> Any:
        return take_apart(item, tensors, root, f"{path}/{key}" if path else str(key))

    if isinstance(value, Tensor):
        while path in tensors:  # a name may hold a slash of its own
            path += "'"
        tensors[path] = value
        return {_TENSOR: path}
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | str) or type(value) is int:
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {_FLOAT: str(value)}
    if isinstance(value, Counter):
        return {_COUNTER: [[inner(key, key), number] for key, number in value.items()]}
    if isinstance(value, dict):
        if all(type(key) is str and not key.startswith("$") for key in value):
            return {key: inner(item, key) for key, item in value.items()}
        return {_PAIRS: [[inner(key, key), inner(item, key)] for key, item in value.items()]}
    if isinstance(value, list):
        return [inner(item, number) for number, item in enumerate(value)]
    if isinstance(value, tuple):
        return {_TUPLE: [inner(item, number) for number, item in enumerate(value)]}
    raise BadInput(
        f"a checkpoint cannot hold the {type(value).__name__} that {root} keeps as {path!r}; "
        "it holds numbers, strings, tensors, lists, tuples and dicts of them"
    )


def assemble(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The nest that `take_apart` was given."""
    if isinstance(value, list):
        return [assemble(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        (mark, content), *_ = value.items()
        if mark == _TENSOR:
            return tensors[content]
        if mark == _TUPLE:
            return tuple(assemble(item, tensors) for item in content)
        if mark == _FLOAT:
            return float(content)
        if mark == _COUNTER:
            return Counter({assemble(key, tensors): number for key, number in content})
        if mark == _PAIRS:
            return {assemble(key, tensors): assemble(item, tensors) for key, item in content}
    return {key: assemble(item, tensors) for key, item in value.items()}
