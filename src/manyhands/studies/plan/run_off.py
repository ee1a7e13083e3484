"""A run-off: what is left of the budget goes to the rows that may be the best, slice by slice in turn.

The same few slices for every row tell a slow row from a fast one, but of rows that are about equally fast they pick the one
that was luckiest. The rows in question are few, so a quarter of the budget gives each of them more and longer slices than
all rounds before.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

from ..slices import Variant, run_slice, steady_ms

CLOSE = 0.1  # rows this close to the fastest are in, even if their few slices agree: slices of one row differ as much
MOST_ROWS = 3


def finalists(variants: Sequence[Variant]) -> list[Variant]:
    """The fastest so far, and those that may be as fast: within `CLOSE` of it, or no slower than its slowest slice."""
    ranked = sorted((one for one in variants if one.runs and one.problem is None), key=_step_ms)
    if not ranked:
        return []
    limit = max((1 + CLOSE) * _step_ms(ranked[0]), *map(steady_ms, ranked[0].runs))
    return [one for one in ranked if _step_ms(one) <= limit][:MOST_ROWS]


def run_off(
    variants: Sequence[Variant], until: float, start: float, seconds: float, say: Callable[[str], None]
) -> None:
    """Slices of the finalists until that time (time.monotonic); `start` is what a slice takes beside its `seconds`.

    After every turn they are chosen again: one that falls behind drops out, and a lone one needs no more slices.
    """
    turn: list[Variant] = []
    while True:
        turn = turn or finalists(variants)
        if len(finalists(variants)) < 2 or time.monotonic() + start + seconds > until:
            return
        variant = turn.pop(0)
        say(f"run-off: {variant.label}")
        variant.slices.append(run_slice(variant, seconds))


def _step_ms(variant: Variant) -> float:
    return statistics.median(map(steady_ms, variant.runs))
