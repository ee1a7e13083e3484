"""What a sample costs in every phase, as milliseconds of a core (or a GPU): what rows with any number of ranks and threads
have in common.

So a phase costs the same where the cores that all ranks share are shared out among more of them, and where more ranks
bring more cores it must take less of a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ..record.run import Run
from .figures import kind, phase_times
from .scaling import at_work

NEW = 0.2  # of a phase's cost, below which the other row is as good as without it


class Excess(NamedTuple):
    """The phase in which a row spends most beyond another one."""

    phase: str
    share: float  # of the row's own step
    ratio: float | None  # of its cost to that of the other row; None where that has next to none


def samples_of_a_core(run: Run) -> float:
    """Of a step, for each core or GPU at work."""
    return (run.batch_size or 1) / at_work(run) / ((run.threads or 1) if kind(run) == "cpu" else 1)


def costs(run: Run, times: Mapping[str, float]) -> dict[str, float]:
    """Milliseconds of a core per sample, by phase, from the times of a step."""
    return {name: value / samples_of_a_core(run) for name, value in times.items()}


def largest_excess(run: Run, over: Run) -> Excess | None:
    """Where a slow row loses its time: not in its largest phase, which one process may have just as well."""
    times, others = phase_times(run), phase_times(over)
    if not times or not others:
        return None
    mine, theirs = costs(run, times), costs(over, others)
    phase = max(times, key=lambda name: mine[name] - theirs[name])
    if mine[phase] <= theirs[phase]:
        return None
    ratio = mine[phase] / theirs[phase] if theirs[phase] > NEW * mine[phase] else None
    return Excess(phase, times[phase] / sum(times.values()), ratio)
