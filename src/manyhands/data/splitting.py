"""How a batch is split into parts and joined again: which of its tensors and lists count samples.

A tensor counts samples by its rows, a list by its entries where it holds one for each sample (images of different
sizes, one dictionary of boxes per image). One batch alone cannot tell: three images of three channels are three rows
each. So the rule is learnt before the start from two batches of different sizes, and what grows from the one to the
other is what counts. Everything else is refused, never guessed.

    ({"image": (3, 8, 8), ...}, [{"box": (1, 4)}, ...])   3 samples      rule: ((rows,), entries)
    ({"image": (2, 8, 8), ...}, [{"box": (5, 4)}, ...])   2 samples
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from ..errors import BadInput
from . import nest

ROWS, ENTRIES, SHARED = "rows", "entries", "shared"
Rule = str | tuple[Any, ...]  # one of these words, or the rules of what a nest holds


class Unsplittable(Exception):
    """What of a batch counts no samples, in words: `a tensor of shape (7,) for 8 samples`."""


def learn(more: Any, fewer: Any, samples: tuple[int, int]) -> Rule:
    """The rule of batches like these two, of so many samples, which must differ."""
    if isinstance(more, Tensor | np.ndarray):
        if not more.ndim:
            return SHARED
        if isinstance(fewer, type(more)) and (len(more), len(fewer)) == samples:
            return ROWS
        raise Unsplittable(f"a tensor of shape {tuple(more.shape)} for {samples[0]} samples")
    if isinstance(more, PackedSequence) or (more is not None and nest.opaque(more) is more):
        raise Unsplittable(f"a {type(more).__name__}")
    inner, others = nest.children(more), nest.children(fewer)
    if inner is None or others is None:
        return SHARED
    if isinstance(more, tuple | list) and not hasattr(more, "_fields") and (len(inner), len(others)) == samples:
        return ENTRIES
    if len(inner) != len(others):
        raise Unsplittable(f"a {type(more).__name__} of {len(inner)} entries for {samples[0]} samples")
    return tuple(learn(one, other, samples) for one, other in zip(inner, others, strict=True))


def inferred(value: Any, arguments: bool = False) -> Rule:
    """The rule for one batch nobody knows more of: rows where every tensor has as many, else entries of lists.

    Of the `arguments` of a call the outermost tuple or dictionary is known to count nothing.
    """
    outer = nest.children(value) or [] if arguments else [value]
    lengths = [len(tensor) for tensor in nest.leaves(value) if tensor.dim()]
    lists = {len(item) for item in outer if type(item) in (list, tuple)}
    samples = -1  # rows of any number
    if len(set(lengths)) > 1:
        samples = lists.pop() if len(lists) == 1 else lengths[0]
    rules = tuple(_inferred(item, samples) for item in outer)
    return (rules or SHARED) if arguments else rules[0]


def _inferred(value: Any, samples: int) -> Rule:
    if isinstance(value, Tensor):
        if value.dim() and samples >= 0 and len(value) != samples:
            raise BadInput(
                f"a tensor of shape {tuple(value.shape)} in a batch of {samples} samples cannot be split over replicas; "
                "its first dimension must count samples"
            )
        return ROWS if value.dim() else SHARED
    if type(value) in (list, tuple) and len(value) == samples:
        return ENTRIES
    return tuple(_inferred(item, samples) for item in nest.children(value) or ()) or SHARED


def count(value: Any, rule: Rule) -> int:
    """How many samples a batch holds; what counts them must agree."""
    found = set(_counts(value, rule))
    if len(found) > 1:
        raise BadInput(
            f"a batch's tensors and lists count different numbers of samples: {', '.join(map(str, sorted(found)))}"
        )
    return found.pop() if found else 0


def _counts(value: Any, rule: Rule) -> list[int]:
    if isinstance(rule, str):
        return [] if rule == SHARED else [len(value)]
    return [number for item, own in _inside(value, rule) for number in _counts(item, own)]


def split(value: Any, rule: Rule, bounds: Sequence[tuple[int, int]]) -> list[Any]:
    """The stretches of a batch, without copying."""
    samples = count(value, rule)
    if samples and samples != bounds[-1][1]:
        raise BadInput(f"a batch of {bounds[-1][1]} samples holds {samples}; one entry or row per sample is needed")
    return [_part(value, rule, start, stop) for start, stop in bounds]


def _part(value: Any, rule: Rule, start: int, stop: int) -> Any:
    if isinstance(rule, str):
        return value if rule == SHARED else value[start:stop]
    return nest.rebuilt(value, [_part(item, own, start, stop) for item, own in _inside(value, rule)])


def join(
    parts: Sequence[Any], rule: Rule, rows: Callable[[Sequence[Tensor]], Tensor], entry: Callable[[Any], Any]
) -> Any:
    """Stretches of a batch as one again; `rows` puts tensors one behind the other, `entry` moves what is in a list."""
    if isinstance(rule, str):
        if rule == ROWS:
            return rows(parts)
        if rule == ENTRIES:
            every = [entry(item) for part in parts for item in part]
            return every if isinstance(parts[0], list) else tuple(every)
        if any(not _same(part, parts[0]) for part in parts):
            raise BadInput(
                f"replicas gave different values where one is needed for the batch ({', '.join(map(str, parts))}); "
                "give one per sample"
            )
        return parts[0]
    columns = zip(*([item for item, _ in _inside(part, rule)] for part in parts), strict=True)
    return nest.rebuilt(parts[0], [join(column, own, rows, entry) for column, own in zip(columns, rule, strict=True)])


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and torch.equal(one, other.to(one.device))
    return one is other or not isinstance(one, bool | int | float | str) or one == other


def _inside(value: Any, rule: tuple[Any, ...]) -> list[tuple[Any, Rule]]:
    inner = nest.children(value)
    if inner is None or len(inner) != len(rule):
        raise BadInput(
            f"a batch holds {'no nest' if inner is None else f'{len(inner)} parts'} where others hold {len(rule)} "
            f"(found {type(value).__name__}); give every batch the same structure"
        )
    return list(zip(inner, rule, strict=True))
