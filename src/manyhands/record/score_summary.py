"""What scores show together: how far off forecasts are, how often their intervals hold, how often they pick the best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .scores import Score
from .spread import quantile, trimmed


def summary(scores: Sequence[Score]) -> dict[str, Any]:
    """`overall`, and `by_strategy` (plain name -> the same figures), largest count first.

    Figures: `count`; `median_error`, `p90_error` of |error|; `bias`, the median of the signed error; `intervals`, `held`
    and their ratio `coverage`; `memory_count`, `median_memory_error` of |error|; `best` (see `picks`). None: no scores.
    """
    names = sorted({one.run.strategy for one in scores})
    groups = {name: [one for one in scores if one.run.strategy == name] for name in names}
    chosen = picks(scores)
    return {
        "overall": _figures(scores, chosen),
        "by_strategy": {
            name: _figures(group, [pick for pick in chosen if pick[1].run.strategy == name])
            for name, group in sorted(groups.items(), key=lambda item: -len(item[1]))
        },
    }


def _figures(scores: Sequence[Score], chosen: Sequence[tuple[Score, Score]]) -> dict[str, Any]:
    errors = [abs(one.error) for one in scores]
    intervals = [one.held for one in scores if one.held is not None]
    memory = [abs(one.memory_error) for one in scores if one.memory_error is not None]
    return {
        "count": len(scores),
        "median_error": quantile(errors, 0.5),
        "p90_error": quantile(errors, 0.9),
        "bias": quantile([one.error for one in scores], 0.5),
        "intervals": len(intervals),
        "held": sum(intervals),
        "coverage": sum(intervals) / len(intervals) if intervals else None,
        "memory_count": len(memory),
        "median_memory_error": quantile(memory, 0.5),
        "best": {
            "comparisons": len(chosen),
            "strict": sum(picked.measured >= fastest.measured for picked, fastest in chosen),
            "within_noise": sum(as_fast(picked, fastest) for picked, fastest in chosen),
        },
    }


def picks(scores: Sequence[Score]) -> list[tuple[Score, Score]]:
    """For each comparison with two scored rows or more: the row that the forecasts put first, and the fastest one.

    Rows without a forecast are left out: nobody said anything of them. By strategy, a comparison counts for the strategy
    that was the fastest, whichever was picked.
    """
    comparisons: dict[str, list[Score]] = {}
    for one in scores:
        if one.run.comparison is not None:
            comparisons.setdefault(one.run.comparison, []).append(one)
    return [
        (max(rows, key=lambda row: row.forecast_speed), max(rows, key=lambda row: row.measured))
        for rows in comparisons.values()
        if len(rows) > 1
    ]


def as_fast(picked: Score, fastest: Score) -> bool:
    """Whether the speed of the picked row lies among the rounds of the fastest: measuring cannot tell them apart."""
    rounds = trimmed(fastest.run.rounds or [fastest.measured])
    return picked.measured >= min(rounds[0], fastest.measured)
