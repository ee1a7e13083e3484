"""Collating: samples become a batch, as torch's default_collate does it, and where that gives up.

tensors, arrays, numbers     one tensor, a row per sample
texts                        a list
tuples and lists             the same of each place: pairs, triplets
mappings, dataclasses        the same of each key, in the type of the samples; a list of numbers is a row, as in the rows of
                             Hugging Face datasets (torch would give a tensor per number)
None                         None, where every sample has it
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from ..errors import BadInput
from . import nest

NUMBERS = (bool, int, float, np.number, np.bool_)


def collate(samples: Sequence[Any], at: str = "") -> Any:
    """A batch of samples; `at` says in messages where in a sample we are."""
    first = samples[0]
    if isinstance(first, Tensor | np.ndarray):
        return _stacked(samples, at)
    if first is None:
        return _nothing(samples, at)
    if isinstance(first, Mapping) or nest.attribute_names(first) is not None:
        return _by_name(samples, at)
    if isinstance(first, tuple | list):
        return _by_place(samples, at)
    try:
        return default_collate(list(samples))
    except (TypeError, RuntimeError) as problem:
        if any(sample is None for sample in samples):
            return _nothing(samples, at)
        raise BadInput(
            f"samples hold a {type(first).__name__}{at}, which cannot be put into a batch; leave it out of the samples, "
            "or give task.collate"
        ) from problem


def _nothing(samples: Sequence[Any], at: str) -> Any:
    """Of samples that hold None: None, where all do; texts with gaps stay a list."""
    there = [sample for sample in samples if sample is not None]
    if there and all(isinstance(sample, str) for sample in there):
        return list(samples)
    if there:
        raise BadInput(f"some samples hold None{at} and others do not; give task.collate, which makes a batch of both")
    return None


def _by_name(samples: Sequence[Any], at: str) -> Any:
    columns = [_entries(sample) for sample in samples]
    names = columns[0].keys()
    for column in columns:
        if column.keys() != names:
            different = sorted(map(str, names ^ column.keys()))
            raise BadInput(
                f'only some samples hold "{different[0]}"{at}; give every sample the same keys, or give task.collate'
            )
    return nest.rebuilt(
        samples[0],
        [_column([column[name] for column in columns], f' under "{name}"' + at) for name in names],
    )


def _entries(sample: Any) -> Mapping[Any, Any]:
    if isinstance(sample, Mapping):
        return sample
    return {name: getattr(sample, name) for name in nest.attribute_names(sample) or ()}


def _column(values: list[Any], at: str) -> Any:
    """What all samples hold under one name."""
    rows = [numbers(value) for value in values] if isinstance(values[0], list) else []
    if rows and all(row is not None for row in rows):
        return _stacked(rows, at)
    if all(type(value) is float for value in values):
        return torch.tensor(values)  # in torch's default type, as rows are
    return collate(values, at)


def numbers(value: Any) -> Tensor | None:
    """A list of numbers, or of such lists of equal length, as a tensor; None for any other list."""
    inside = value
    while isinstance(inside, list) and inside:
        inside = inside[0]
    if not isinstance(inside, NUMBERS) and not (isinstance(inside, list) and inside is not value):
        return None
    try:
        return torch.tensor(value)
    except (TypeError, ValueError, RuntimeError):  # ragged, or not numbers alone
        return None


def _by_place(samples: Sequence[Any], at: str) -> Any:
    first = samples[0]
    if any(sample is None for sample in samples):
        return _nothing(samples, at)
    lengths = sorted(set(map(len, samples)))
    if len(lengths) > 1:
        raise BadInput(
            f"samples hold lists of different lengths{at} ({lengths[0]} and {lengths[-1]}); "
            "give task.collate, which pads them or keeps them as a list"
        )
    columns = [collate(column, at) for column in zip(*samples, strict=True)]
    named = hasattr(first, "_fields") or isinstance(first, list)
    return nest.rebuilt(first, columns) if named else columns  # a plain tuple becomes a list, as torch has it


def _stacked(rows: Sequence[Any], at: str) -> Any:
    try:
        return default_collate(list(rows))
    except (RuntimeError, TypeError) as problem:
        if any(row is None for row in rows):
            return _nothing(rows, at)
        shapes = list(dict.fromkeys(tuple(getattr(row, "shape", ())) for row in rows))
        if len(shapes) > 1:
            raise BadInput(
                f"samples hold tensors of different shapes{at} ({shapes[0]} and {shapes[1]}); "
                "give task.collate, which pads them or keeps them as a list"
            ) from problem
        raise
