"""What runs of one script say in words: how much more ranks bring, and if they bring less, which phase takes the time.

A script decides itself how many samples a rank takes per step, so steps of runs with more ranks are held against the
time that the run with the fewest takes for as many samples of one rank.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..record.run import Run
from .comparing import relation, speedup
from .figures import largest_phase, percent, phase_times, speed

WORTH_NAMING = 0.15  # of the longer time: a phase that grew by more is named
WHAT = {
    "communication": "communication (exchanging data and waiting for other ranks)",
    "other": "code between the phases",
}


def is_script(run: Run) -> bool:
    return run.strategy == "script"


def script_verdict(runs: Sequence[Run]) -> str:
    """One or two sentences on runs of one script that ended well, fewest ranks first."""
    fewest, most = runs[0], runs[-1]
    if len(runs) == 1:
        return f"{_alone(fewest)}."
    if fewest.ranks == most.ranks:
        ordered = sorted(runs, key=lambda run: speed(run) or 0.0)
        fewest, most = ordered[0], ordered[-1]
    return f"{_gain(fewest, most)}{_why(fewest, most)}."


def _alone(run: Run) -> str:
    largest = largest_phase(run)
    share = f"; {percent(largest[1])} of its step is {largest[0]}" if largest else ""
    known = speed(run)
    figure = f"trains {known:,.0f} samples/s" if known else f"takes {_step(run):.1f} ms per step"
    return f"{run.task} {figure} on {_ranks(run)}{share}"


def _gain(base: Run, run: Run) -> str:
    ratio = speedup(run, base)
    who = f"{run.task} on {_ranks(run)}"
    if ratio is None:
        return f"{who} takes {_step(run):.1f} ms per step, on {_ranks(base)} {_step(base):.1f} ms"
    against = f"({speed(run):,.0f} against {speed(base):,.0f})"
    standing = relation(run, base)
    if standing == "same":
        return f"{who} trains as many samples/s as on {_ranks(base)} {against}"
    if standing == "unclear":
        return (
            f"{who} trains {ratio:.2f}x the samples/s of {_ranks(base)} {against}, which may be chance in one run each"
        )
    word = "only " if ratio < 1 else ""
    return f"{who} trains {word}{ratio:.2f}x the samples/s of {_ranks(base)} {against}"


def _why(base: Run, run: Run) -> str:
    """Where the time goes that a rank of the larger run takes longer for the samples of its step."""
    scale = _share(run) / _share(base)
    before, after = phase_times(base), phase_times(run)
    grown = {name: after[name] - scale * before.get(name, 0.0) for name in after}
    longer, wanted = sum(grown.values()), scale * sum(before.values())
    if longer <= 0.05 * wanted:
        return ""
    named = sorted((name for name in grown if grown[name] > WORTH_NAMING * longer), key=lambda name: -grown[name])
    parts = [f"{grown[name]:.1f} ms more in {WHAT.get(name, name)}" for name in named[:2]]
    text = f": a step takes {sum(after.values()):.1f} ms, where {_ranks(base)} would take {wanted:.1f} ms for the samples of each rank"
    text += f", with {' and '.join(parts)}" if parts else ""
    if {"forward", "backward", "update"} & set(named[:2]) and run.threads and run.threads < (base.threads or 0):
        text += f"; each rank has {_threads(run.threads)} instead of {base.threads}"
    return text


def _share(run: Run) -> float:
    """Samples of one rank per step; where they are not known, runs are taken to have equal ones."""
    return run.batch_size / run.ranks if run.batch_size else 1.0


def _step(run: Run) -> float:
    return sum(phase_times(run).values())


def _ranks(run: Run) -> str:
    return "one rank" if run.ranks == 1 else f"{run.ranks} ranks"


def _threads(count: int) -> str:
    return "one thread" if count == 1 else f"{count} threads"
