"""Figures of one run: speed and its spread, phases, accuracy, memory; and how figures are written."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

from ..record.neighbours import BUSY
from ..record.run import PHASES, Run
from ..record.spread import trimmed

NAMED_HOSTS = 4
LOST = ("load", "communication", "wait")  # phases in which a rank neither computes nor updates


def number(value: object) -> float | None:
    """The value as a finite float, else None: records may come from any version."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def speeds(run: Run) -> list[float]:
    """Samples per second of each round, where rounds were measured."""
    return [value for item in run.rounds or [] if (value := number(item)) is not None]


def speed(run: Run) -> float | None:
    """Samples per second: the median of the rounds, else that of the whole fit."""
    rounds = speeds(run)
    return median(rounds) if rounds else number(run.samples_per_second)


def taken_share(run: Run) -> float:
    """How much of the cores other processes used while it was measured, 0..1; 0 where that was little, or is not known."""
    taken, cores = number(run.others_cores), number((run.environment or {}).get("cores"))
    share = taken / cores if taken and cores and cores > 0 else 0.0
    return min(share, 1.0) if share > BUSY else 0.0


def spread(run: Run) -> tuple[float, float] | None:
    """The slowest and the fastest round; None when there are fewer than two."""
    rounds = trimmed(speeds(run))
    return (rounds[0], rounds[-1]) if len(rounds) > 1 else None


def phase_times(run: Run, of_a_round: Mapping[str, float | None] | None = None) -> dict[str, float]:
    """Milliseconds of every known phase, in their order (unknown names count as `other`); empty without any."""
    times = dict.fromkeys(PHASES, 0.0)
    for name, value in (of_a_round or run.phases_ms or {}).items():
        times[name if name in times else "other"] += number(value) or 0.0
    return times if sum(times.values()) > 0 else {}


def largest_phase(run: Run) -> tuple[str, float] | None:
    """The phase that takes the largest share of a step, and that share (0..1)."""
    times = phase_times(run)
    name = max(times, key=lambda phase: times[phase], default=None)
    return (name, times[name] / sum(times.values())) if name else None


def lost_share(run: Run) -> float | None:
    """The share of a step (0..1) that is lost to loading, communication and waiting."""
    times = phase_times(run)
    return sum(times[phase] for phase in LOST) / sum(times.values()) if times else None


def accuracy(run: Run) -> float | None:
    return number((run.test or {}).get("accuracy"))


def peak_memory(run: Run) -> float | None:
    """The most memory any rank held."""
    found = [number(rank.get("peak_memory_bytes")) for rank in run.per_rank or []]
    return max((value for value in found if value is not None), default=None)


def seconds_to(run: Run, target: float | None) -> float | None:
    """Training seconds until an epoch ended at the target accuracy or above; None when none did."""
    elapsed = 0.0
    for epoch in run.epochs or []:
        seconds, reached = number(epoch.get("seconds")), number(epoch.get("test_accuracy"))
        if target is None or seconds is None:
            return None
        elapsed += seconds
        if reached is not None and reached >= target:
            return elapsed
    return None


def hosts(run: Run) -> list[str]:
    """Where its ranks were, by name."""
    return list(dict.fromkeys(str(rank["host"]) for rank in run.per_rank or [] if rank.get("host")))


def named_hosts(found: Sequence[str]) -> str:
    """By name as far as anybody reads them."""
    more = f" and {len(found) - NAMED_HOSTS} more" if len(found) > NAMED_HOSTS else ""
    return f"{', '.join(found[:NAMED_HOSTS])}{more}"


def kind(run: Run) -> str:
    """`cpu`, `cuda` or another kind of device, without its number."""
    return (run.device or "cpu").split(":")[0]


def percent(share: float, digits: int = 0) -> str:
    return f"{100 * share:.{digits}f} %"


def memory_text(value: float) -> str:
    return f"{value / 2**30:.2f} GiB" if value >= 2**30 else f"{value / 2**20:,.0f} MiB"
