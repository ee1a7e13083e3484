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

CLOSE = 0.1  # who takes this much longer than the fastest is out: that is more than slices of one row differ by
MOST_ROWS = 3


def finalists(variants: Sequence[Variant]) -> list[Variant]:
    """Those about as fast as the fastest so far, which comes first."""
    tried = {id(variant): _step_ms(variant) for variant in variants if variant.runs and variant.problem is None}
    ranked = sorted((variant for variant in variants if id(variant) in tried), key=lambda one: tried[id(one)])
    return [one for one in ranked if tried[id(one)] <= (1 + CLOSE) * tried[id(ranked[0])]][:MOST_ROWS]


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
