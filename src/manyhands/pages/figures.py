"""Figures of one run: speed and its spread, phases, accuracy, memory; and how figures are written."""

from __future__ import annotations

import math
from statistics import median

from ..record.run import PHASES, Run


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


def trimmed(values: list[float]) -> list[float]:
    """In order; of eight or more the outermost eighth on each side is left out, so that more measuring does not mean
    more doubt."""
    cut = len(values) // 8
    return sorted(values)[cut : len(values) - cut]


def spread(run: Run) -> tuple[float, float] | None:
    """The slowest and the fastest round; None when there are fewer than two."""
    rounds = trimmed(speeds(run))
    return (rounds[0], rounds[-1]) if len(rounds) > 1 else None


def phase_times(run: Run) -> dict[str, float]:
    """Milliseconds of every known phase, in their order (unknown names count as `other`); empty without any."""
    times = dict.fromkeys(PHASES, 0.0)
    for name, value in (run.phases_ms or {}).items():
        times[name if name in times else "other"] += number(value) or 0.0
    return times if sum(times.values()) > 0 else {}


def largest_phase(run: Run) -> tuple[str, float] | None:
    """The phase that takes the largest share of a step, and that share (0..1)."""
    times = phase_times(run)
    name = max(times, key=lambda phase: times[phase], default=None)
    return (name, times[name] / sum(times.values())) if name else None


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


def kind(run: Run) -> str:
    """`cpu`, `cuda` or another kind of device, without its number."""
    return (run.device or "cpu").split(":")[0]


def percent(share: float, digits: int = 0) -> str:
    return f"{100 * share:.{digits}f} %"


def memory_text(value: float) -> str:
    return f"{value / 2**30:.2f} GiB" if value >= 2**30 else f"{value / 2**20:,.0f} MiB"
