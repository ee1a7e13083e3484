"""What the slices of a row show together: all figures of its time come from one of them, the median one.

A row has been fitted as a whole once, minutes before or after the other rows; its slices were measured in turn with
theirs. So speed, steps, phases (of all ranks and of each) and the timeline are those of the slice with the median speed;
of an even number of slices, the mean of the two in the middle. What the whole fit showed is kept in `whole_fit`.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ..record.run import Run

WHOLE_FIT = ("samples_per_second", "step_ms", "phases_ms")
OF_TIME = ("step_ms", "phases_ms", "phases_source", "overlapped_communication_ms")
OF_TIME_PER_RANK = ("phases_ms", "cpu_ms", "stolen_ms", "switches")


def take_rounds(run: Run, slices: Sequence[Run]) -> None:
    """Give a row the figures of its slices, each of which ended well and has a speed."""
    ordered = sorted(slices, key=_speed)
    middle = ordered[(len(ordered) - 1) // 2 : len(ordered) // 2 + 1]
    run.whole_fit = {name: getattr(run, name) for name in WHOLE_FIT}
    run.rounds = [_speed(piece) for piece in slices]
    run.round_phases_ms = [piece.phases_ms or {} for piece in slices]
    run.samples_per_second = statistics.median(run.rounds)
    for name in OF_TIME:
        setattr(run, name, _mean([getattr(piece, name) for piece in middle]))
    run.per_rank = _timed(run.per_rank, [piece.per_rank for piece in middle])
    run.servers = _timed(run.servers, [piece.servers for piece in middle])
    run.timeline = middle[0].timeline or run.timeline


def _speed(piece: Run) -> float:
    return piece.samples_per_second or 0.0


def _timed(rows: list[dict[str, Any]], measured: Sequence[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Every rank (or server) with the times of the slices; where it was and what memory it took is the fit's."""
    if any(len(found) != len(rows) for found in measured):
        return rows
    return [
        {**row, **{name: _mean([one.get(name) for one in same]) for name in OF_TIME_PER_RANK if name in row}}
        for row, *same in zip(rows, *measured, strict=True)
    ]


def _mean(found: Sequence[Any]) -> Any:
    """The mean of figures, or of every figure in mappings of them; what is no figure must be equal, or is not known."""
    first = found[0]
    if all(isinstance(one, Mapping) for one in found):
        return {key: _mean([one.get(key) for one in found]) for key in first}
    if all(isinstance(one, int | float) for one in found):
        return statistics.fmean(found)
    return first if all(one == first for one in found) else None
