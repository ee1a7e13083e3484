"""What cannot be told from so few measurements, and what to measure instead."""

from __future__ import annotations

from collections.abc import Sequence

from ..record.run import Run
from .figures import speeds, taken_share
from .phrases import amount, capital, joined

MORE_ROUNDS = 9  # where a comparison had none or one


def evidence(runs: Sequence[Run]) -> str:
    """`three rounds`, or `one fit each` where there were none."""
    rounds = _rounds(runs)
    return amount(rounds, "round") if rounds else "one fit each"


def advice(runs: Sequence[Run]) -> str:
    """`use --rounds 9`; beside other processes more rounds tell no more; for runs that are no comparison, how to make one."""
    if any(map(taken_share, runs)):
        return "measure again on a quiet machine"
    if any(run.comparison is None and not run.rounds for run in runs):
        return "`manyhands compare` measures them in turn"
    return f"use --rounds {3 * _rounds(runs) if _rounds(runs) > 1 else MORE_ROUNDS}"


def cannot_tell(runs: Sequence[Run], called: Sequence[str]) -> str:
    """`Three rounds cannot tell ddp and hogwild apart; use --rounds 9`."""
    return f"{capital(evidence(runs))} cannot tell {joined(called)} apart; {advice(runs)}"


def _rounds(runs: Sequence[Run]) -> int:
    return min(len(speeds(run)) for run in runs)
