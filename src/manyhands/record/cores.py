"""The cores this process may really use: the least of its affinity (with its cpuset) and the quota of its control groups."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

from .cgroups import SYSTEM, group_folders, read_number, read_words


@dataclass(frozen=True)
class Cores:
    """`count` is what to plan with; `limited_by` says why it is less than `machine`: affinity, cpuset, quota or None."""

    count: int
    machine: int
    affinity: int
    quota: float | None
    limited_by: str | None


def available_cores() -> int:
    """The cores this process may use, not those the machine has."""
    return usable_cores().count


def usable_cores(root: Path = SYSTEM) -> Cores:
    """What may be used now: limits can change while a process runs, so nothing is remembered."""
    machine = os.cpu_count() or 1
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else machine
    quota = _quota(root)
    # Half a core more still lets another thread run half of the time, and no core at all would be nonsense.
    allowed = affinity if quota is None else max(1, math.ceil(quota - 0.01))
    if allowed < affinity:
        limit = "quota"
    elif affinity < machine:
        limit = "cpuset" if _cpuset(root) == affinity else "affinity"
    else:
        limit = None
    return Cores(min(affinity, allowed), machine, affinity, quota, limit)


def _quota(root: Path) -> float | None:
    """Cores' worth of time per second that the strictest of our groups grants."""
    grants = [grant for folder in group_folders("cpu", root) if (grant := _grant(folder)) is not None]
    return min(grants, default=None)


def _grant(folder: Path) -> float | None:
    maximum = read_words(folder / "cpu.max")  # version 2: "50000 100000", or "max 100000"
    if len(maximum) == 2 and all(word.isdigit() for word in maximum) and int(maximum[1]):
        return int(maximum[0]) / int(maximum[1])
    quota, period = read_number(folder / "cpu.cfs_quota_us"), read_number(folder / "cpu.cfs_period_us")
    return quota / period if quota and period else None


def _cpuset(root: Path) -> int | None:
    """How many cores the cpuset of our group has, to tell it from an affinity that somebody has set."""
    for folder in group_folders("cpuset", root):
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"):
            if words := read_words(folder / name):
                return sum(_span(part) for part in words[0].split(","))
    return None


def _span(part: str) -> int:
    """`0-3` is four cores, `7` one."""
    first, _, last = part.partition("-")
    return int(last or first) - int(first) + 1
