"""thinned(): so many of a long list and no more, evenly spread, the last always among them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def thinned(values: Sequence[T], most: int) -> Sequence[T]:
    every = max(1, -(-len(values) // most))
    return values[(len(values) - 1) % every :: every]
