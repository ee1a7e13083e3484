"""The slow rank: whom the others wait for, and in which phase it falls behind.

Ranks that meet in every step show equal step times, however slow one of them is. Two signs give it away:

    arrivals   it comes last to the synchronisation points, again and again
    work       it spends more time in phases of its own than any other, and less time standing still

Arrivals are the finer sign. Ranks that never meet, or only one by one (hogwild, a lock, a server), have only the
second. So have stages, which hold different layers and never do equal work: one is named only when it is far behind,
which is either a slow device or an uneven cut. Where ranks make shares of slower ones rather than wait, nobody stands
still: there the time for equal work is compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .run import PHASES

LATE_SHARE = 0.05  # of the step that the others wait for a rank which always comes last
WORK_SHARE = 0.15  # of the step that a rank works longer than the next; below, ranks differ by chance
STAGE_SHARE = 0.4  # the same, for stages
IDLE = [PHASES.index("communication"), PHASES.index("wait")]
WORK = [number for number, name in enumerate(PHASES) if name not in ("communication", "wait", "other")]


def slow_rank(training: Sequence[dict[str, Any]], phases: np.ndarray, steps: int) -> dict[str, Any] | None:
    """Rank, phase and milliseconds a step behind the others; None where no rank stands out.

    `training` is what every rank measured, `phases` the nanoseconds of each (ranks x phases).
    """
    total = phases.sum(axis=1).mean()
    if len(training) < 2 or total <= 0:
        return None
    stages = any(item.get("repeats") for item in training)
    helped = any(item.get("helped") for item in training)
    if helped:
        made = np.array([[max(1, item["samples"])] for item in training], dtype=np.float64)
        phases = phases * (made.mean() / made)
    found = None if stages else _comes_last(np.array([item["late"] for item in training], dtype=np.float64), total)
    if found is None:
        found = _works_longer(phases, (STAGE_SHARE if stages else WORK_SHARE) * total, standing=not helped)
    if found is None:
        return None
    slowest, behind = found
    excess = phases[slowest] - np.delete(phases, slowest, axis=0).mean(axis=0)
    phase = max(WORK, key=lambda number: excess[number])
    return {"rank": training[slowest]["rank"], "phase": PHASES[phase], "behind_ms": behind / steps / 1e6}


def _comes_last(late: np.ndarray, total: float) -> tuple[int, float] | None:
    slowest = int(late.argmax())
    if late[slowest] - np.delete(late, slowest).max() < LATE_SHARE * total:
        return None
    return slowest, float(late[slowest])


def _works_longer(phases: np.ndarray, least: float, standing: bool) -> tuple[int, float] | None:
    work, idle = phases[:, WORK].sum(axis=1), phases[:, IDLE].sum(axis=1)
    slowest = int(work.argmax())
    ahead = work[slowest] - np.delete(work, slowest).max()
    waiting = np.delete(idle, slowest).mean() - idle[slowest]
    behind = float(min(ahead, waiting) if standing else ahead)
    return (slowest, behind) if behind > least else None
