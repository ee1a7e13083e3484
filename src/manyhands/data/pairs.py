"""Pairs: whatever samples look like, a batch is (input, target).

samples                              target=None             target="labels"
(x, y)                               x, y                    refused: there are no keys
{"ids": ..., "labels": ...}          all of it, None         the rest, labels
x, (a, b, c), a dataclass            all of it, None         as a mapping, for a dataclass

Where the model computes its loss itself (`loss=None`) the target stays in the input as well. It happens right where
samples are collated, so in a loader's worker processes too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import BadInput, did_you_mean
from . import nest
from .collate import collate


@dataclass(frozen=True)
class Pairs:
    """How samples become (input, target)."""

    collate: Callable[[list[Any]], Any] | None = None  # None: collate.py
    target: str | tuple[str, ...] | None = None  # the key or keys of the target
    kept: bool = False  # the input keeps the target

    def __call__(self, samples: list[Any]) -> tuple[Any, Any]:
        if self.collate is None:
            return self.split(collate(samples))
        batch = self.collate(samples)
        return (batch, None) if self._lists(samples, batch) else self.split(batch)

    def _lists(self, samples: list[Any], batch: Any) -> bool:
        """Whether a batch of one or two is a list of samples, and not the input alone or a pair of columns."""
        if self.collate is None or self.target is not None or not isinstance(batch, list):
            return False
        several = len(samples) == len(batch) == 2
        return len(batch) == 1 or (several and len(self.collate(samples[:1])) == 1)

    def split(self, batch: Any) -> tuple[Any, Any]:
        """The (input, target) of one batch, or of all data at once."""
        if self.target is not None:
            return self._by_key(batch, self.target)
        if isinstance(batch, tuple | list):
            if len(batch) == 2:
                return batch[0], batch[1]
            if len(batch) == 1:
                return batch[0], None
        return batch, None

    def _by_key(self, batch: Any, target: str | tuple[str, ...]) -> tuple[Any, Any]:
        keys = (target,) if isinstance(target, str) else target
        there = batch if isinstance(batch, Mapping) else nest.attribute_names(batch)
        if there is None:
            raise BadInput(
                f"task.target names {_quoted(keys)}, but samples have no keys (found {type(batch).__name__}); leave "
                "task.target out where samples are (input, target), or return mappings"
            )
        for key in keys:
            if key not in there:
                raise BadInput(f'samples have no "{key}" (task.target){did_you_mean(key, map(str, there))}')
        values = {key: batch[key] if isinstance(batch, Mapping) else getattr(batch, key) for key in keys}
        found = values[target] if isinstance(target, str) else values
        return batch if self.kept else nest.without(batch, keys), found


def _quoted(keys: tuple[str, ...]) -> str:
    return ", ".join(f'"{key}"' for key in keys)
