"""What is wrong with a script at first sight: a suspected cause, and the change that would prove it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...bridges.scripts.witnessed import Seen

SAME = 1e-4  # relative: gradients of one pass that differ by less differ by the order of their sums


@dataclass
class Symptom:
    """`change` is tried on all ranks; `cured` looks at that run. Without a change the observation itself is the proof."""

    cause: str
    reason: str
    cure: str
    tried: str = ""  # what the change did, as the end of a sentence
    step: int | None = None
    layer: str | None = None
    change: dict[str, Any] | None = None
    cured: Callable[[Seen], bool] = field(default=lambda seen: True)
    hurries: bool = False  # the proof lies in later passes over the data


def distance(one: np.ndarray, other: np.ndarray, facts: dict[str, Any]) -> tuple[float, str | None]:
    """The largest relative difference of two tensors' samples over layers, and the first layer beyond SAME.

    A layer is measured against its own largest value, or a thousandth of the largest of all: noise around zero is none.
    """
    sizes, names = facts["sizes"], facts["names"]
    if one.shape != other.shape:
        return float("inf"), None
    if sum(sizes) != one.size:  # one optimizer of several
        sizes, names = [one.size], ["the parameters of one optimizer"]
    floor = float(np.abs(other).max(initial=0.0)) / 1000
    worst, first, start = 0.0, None, 0
    for size, name in zip(sizes, names, strict=True):
        part = slice(start, start + size)
        start += size
        scale = max(floor, float(np.abs(other[part]).max(initial=0.0)))
        gap = float(np.abs(one[part] - other[part]).max(initial=0.0))
        relative = gap / scale if scale else (float("inf") if gap else 0.0)
        relative = relative if relative == relative else float("inf")
        if relative > SAME and first is None:
            first = name
        worst = max(worst, relative)
    return worst, first


def layer_of_most(one: np.ndarray, other: np.ndarray, facts: dict[str, Any], tolerance: float) -> str | None:
    """The first layer that differs by more than the tolerance."""
    if sum(facts["sizes"]) != one.size or one.shape != other.shape:
        return None
    start, floor = 0, float(np.abs(other).max(initial=0.0)) / 1000
    for size, name in zip(facts["sizes"], facts["names"], strict=True):
        part = slice(start, start + size)
        start += size
        scale = max(floor, float(np.abs(other[part]).max(initial=0.0))) or 1.0
        if float(np.abs(one[part] - other[part]).max(initial=0.0)) > tolerance * scale:
            return str(name)
    return None


def over_ranks(seen: Seen, name: str) -> list[np.ndarray]:
    """One array of every rank; empty where a rank has none, or another shape."""
    found = [seen.array(name, rank) for rank in range(len(seen.ranks))]
    whole = [one for one in found if one is not None]
    return whole if len(whole) == len(found) and len({one.shape for one in whole}) == 1 else []


def apart(seen: Seen, name: str) -> tuple[float, int, str | None]:
    """How far a rank is from rank 0 in one array: the distance, the rank, the layer."""
    arrays = over_ranks(seen, name)
    worst: tuple[float, int, str | None] = (0.0, 0, None)
    for rank, one in enumerate(arrays[1:], 1):
        gap, layer = distance(one, arrays[0], seen.ranks[0])
        if gap > worst[0]:
            worst = gap, rank, layer
    return worst


def updates(seen: Seen) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """The number of each update, and what every rank says of it."""
    for number in range(seen.updates):
        yield number, [facts["updates"][number] for facts in seen.ranks]


def trained_passes(facts: dict[str, Any]) -> list[dict[str, Any]]:
    """The passes over the data that were trained on: those of the first such loader."""
    first = facts["trained"][0] if facts.get("trained") else None
    return [one for one in facts.get("passes", ()) if one["loader"] == first]
