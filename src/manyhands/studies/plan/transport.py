"""What messages between the processes of this host cost: collectives and single messages of several sizes, measured."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
import torch.distributed as dist

from ...world.engines.engine import World
from ...world.engines.local import Local
from ...world.rank import Rank

SIZES = (1 << 10, 1 << 16, 1 << 20, 1 << 23)  # bytes
ENOUGH_SECONDS, MOST_TIMES, FEWEST_TIMES = 0.04, 40, 5  # of one collective of one size
LONG, OFTEN = 0.01, 7  # seconds after which one who waits sleeps, and how often waking one is tried

Seconds = dict[int, float]  # by bytes
Kinds = dict[
    str, Seconds
]  # all_reduce, gather, message; wake: what a message takes longer to one who sleeps, at size 0


@dataclass(frozen=True)
class Transport:
    """Seconds by kind and size, for each number of processes that was tried."""

    tried: Mapping[int, Kinds] = field(default_factory=dict)

    def seconds(self, kind: str, size: float, members: int) -> float:
        """Between sizes and numbers of members that were tried: on the line between them; beyond: further along it."""
        if members < 2 or not self.tried:
            return 0.0
        known = sorted(self.tried)
        found = [(count, between(self.tried[count][kind], size)) for count in known]
        if len(found) == 1:  # nothing shows how it grows: as the root, between a tree's steps and everybody's bytes
            return found[0][1] * math.sqrt(members / found[0][0])
        return max(between(dict(found), members), 0.0)

    @property
    def wake(self) -> float:
        """Seconds that a message takes longer to one who has waited so long that it sleeps."""
        return (
            statistics.median(kinds.get("wake", {}).get(0, 0.0) for kinds in self.tried.values()) if self.tried else 0.0
        )


def between(points: Mapping[int, float] | Mapping[float, float], x: float) -> float:
    """On the lines through these points; beyond the last along the last line, below the first as at the first."""
    known: list[tuple[float, float]] = sorted((float(key), value) for key, value in points.items())
    if len(known) == 1 or x <= known[0][0]:
        return known[0][1]
    right = next((place for place, (key, _) in enumerate(known) if key >= x), len(known) - 1)
    (x0, y0), (x1, y1) = known[right - 1], known[right]
    return max(y0 + (y1 - y0) * (x - x0) / (x1 - x0), 0.0)


def measure(members: int, transport: str = "shm") -> Kinds:
    """Start so many processes on this host and time what they hand over."""
    engine = Local()
    world = World(members, members, [torch.device("cpu")] * members, 1, transport)
    with engine.joined(world, lambda kind, content: None, lambda kind, content: None):
        found: Kinds = engine.run(_on_rank, None, lambda: None, lambda failure, board: False, 60.0)
    return found


def _on_rank(rank: Rank) -> Kinds:
    kinds: Kinds = {"all_reduce": {}, "gather": {}, "message": {}}
    for size in SIZES:
        numbers = torch.zeros(size // 4)
        part = torch.zeros(max(1, size // 4 // rank.processes))
        whole = [torch.zeros_like(part) for _ in range(rank.processes)]
        kinds["all_reduce"][size] = _timed(partial(dist.all_reduce, numbers))
        kinds["gather"][size] = _timed(partial(dist.all_gather, whole, part))
        kinds["message"][size] = message_seconds(rank, numbers)
    kinds["wake"] = {0: max(0.0, _woken_seconds(rank) - 2 * kinds["message"][SIZES[0]])}
    return kinds


def _woken_seconds(rank: Rank) -> float:
    """There and back, where rank 1 has waited for long. Of a few tries a quick one: who is busy elsewhere is late anyway."""
    numbers, found = torch.zeros(SIZES[0] // 4), []
    for _ in range(OFTEN):
        if rank.index == 0:
            time.sleep(LONG)
        found.append(_one(partial(_there_and_back, rank, numbers)))
    return sorted(found)[OFTEN // 4]


def message_seconds(rank: Rank, numbers: torch.Tensor) -> float:
    """From rank 0 to rank 1; all ranks ask."""
    return _timed(partial(_there_and_back, rank, numbers)) / 2


def _there_and_back(rank: Rank, numbers: torch.Tensor) -> None:
    if rank.index == 0:
        dist.send(numbers, 1)
        dist.recv(numbers, 1)
    elif rank.index == 1:
        dist.recv(numbers, 0)
        dist.send(numbers, 0)


def _timed(what: Callable[[], object]) -> float:
    """The median of as many times as all ranks agree on."""
    began = time.perf_counter()
    what()
    once = torch.tensor([time.perf_counter() - began])
    dist.all_reduce(once, op=dist.ReduceOp.MAX)
    times = int(min(MOST_TIMES, max(FEWEST_TIMES, ENOUGH_SECONDS / max(float(once), 1e-6))))
    seconds: Sequence[float] = [_one(what) for _ in range(times)]
    return statistics.median(seconds)


def _one(what: Callable[[], object]) -> float:
    began = time.perf_counter()
    what()
    return time.perf_counter() - began


def copy_seconds_per_byte() -> float:
    """Of one core, between pages that are all there: numpy copies in the caller's thread alone, and what was only ever zero
    is a single page to the system."""
    source = np.ones(1 << 24, np.uint8)
    target = source.copy()
    return statistics.median(_one(lambda: np.copyto(target, source)) for _ in range(7)) / source.nbytes
