"""The learning rate on N ranks against one rank: the same by updates, or by samples; a schedule as long as the training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...bridges.scripts.witnessed import Seen
from .script_symptom import Symptom, trained_passes

NEAR = 0.02
FAR = 0.1
MORE = 1.5  # times as many calls per update as on one rank
CURE_CALLS = "call scheduler.step() once per update on every rank, whatever the number of ranks"


def rate_symptoms(seen: Seen, alone: Seen | None) -> Iterator[Symptom]:
    if alone is None:
        return
    many, one = seen.ranks[0], alone.ranks[0]
    if "accelerate" in many["frameworks"]:  # steps schedules once per rank on purpose
        return
    too_long = _too_long(many, one)
    found = _too_often(many, one) or too_long or _other_rates(seen, alone)
    if found is None:
        return
    stride = len(seen.ranks) if found is too_long else 1
    rates = _restored(seen, alone, stride)
    reason, cure, step = found
    yield Symptom(
        "schedule",
        reason,
        cure,
        "with the rates of one rank set from outside, both follow the same schedule",
        step,
        None,
        {"rates": rates},
        lambda trial: _follows(trial, rates),
    )


def _follows(trial: Seen, rates: list[list[float]]) -> bool:
    made = trial.ranks[0]["updates"][: len(rates)]
    return bool(made) and all(_close(one["rates"][0], rates[at][0]) for at, one in enumerate(made))


def _too_often(many: dict[str, Any], one: dict[str, Any]) -> tuple[str, str, int] | None:
    """More calls of the schedule per update, or per pass where it is called once per pass."""
    calls = [facts["schedule_calls"] for facts in (many, one)]
    if not all(calls):
        return None
    updates = [len(facts["updates"]) + len(facts["tail"]) for facts in (many, one)]
    if calls[1] >= NEAR * 40 * updates[1]:
        per, unit = [call / count for call, count in zip(calls, updates, strict=True)], "update"
    else:
        passes = [len(trained_passes(facts)) for facts in (many, one)]
        if not all(passes):
            return None
        per, unit = [call / count for call, count in zip(calls, passes, strict=True)], "epoch"
    if per[0] < MORE * per[1]:
        return None
    return (
        f"step 1: the schedule is stepped {per[0]:.3g} times per {unit}, where one rank steps it {per[1]:.3g} times",
        CURE_CALLS,
        1,
    )


def _too_long(many: dict[str, Any], one: dict[str, Any]) -> tuple[str, str, int] | None:
    """A schedule that ends with the training on one rank, and not on N."""
    for ours, theirs in zip(many["schedules"], one["schedules"], strict=False):
        total, before = _calls_to_come(many), _calls_to_come(one)
        if not ours["ends"] or not theirs["ends"] or not total or not before:
            return None
        if abs(theirs["ends"] - before) <= NEAR * before + 1 and abs(ours["ends"] - total) > FAR * total + 1:
            return (
                f"step 1: {ours['kind']} is made for {ours['ends']} steps, where each rank makes {total:.0f} "
                f"(one rank alone makes {before:.0f}): the rate does not follow the whole schedule",
                "compute the schedule's length from this rank's own loader: epochs * len(loader)",
                1,
            )
    return None


def _calls_to_come(facts: dict[str, Any]) -> float | None:
    """How often the whole training steps its schedule, where the script came to its end."""
    if not facts["ended"] or not facts["schedule_calls"]:
        return None
    made, hurried = len(facts["updates"]), len(facts["tail"])
    passes = trained_passes(facts)
    if not hurried or not passes:
        return float(facts["schedule_calls"])
    if facts["schedule_calls"] < 0.8 * (made + hurried):  # once per pass
        return float(facts["schedule_calls"])
    if passes[0]["length"] is None:
        return None
    updates = len(passes) * (passes[0]["length"] // max(1, facts["group_size"]))
    return updates * round(facts["schedule_calls"] / (made + hurried))


def _other_rates(seen: Seen, alone: Seen) -> tuple[str, str, int] | None:
    """Rates that are those of one rank neither after as many updates nor after as many samples."""
    ranks = len(seen.ranks)
    ours = [made["rates"][0] for made in seen.ranks[0]["updates"]]
    theirs = [made["rates"][0] for made in alone.ranks[0]["updates"]]
    if not ours or not theirs or not theirs[0] or len(set(ours)) + len(set(theirs)) < 3:
        return None
    for stride in (1, ranks):
        pairs = [(mine, theirs[at * stride]) for at, mine in enumerate(ours) if at * stride < len(theirs)]
        ratios = [mine / other for mine, other in pairs if other]
        if all(1 - NEAR <= one <= ranks * (1 + NEAR) for one in ratios) or max(ratios) <= min(ratios) * (1 + NEAR):
            return None
    step = next((at for at, (mine, other) in enumerate(zip(ours, theirs, strict=False)) if not _close(mine, other)), 0)
    return (
        f"step {step + 1}: the learning rate is {ours[step]:.3g}, where one rank has {theirs[step]:.3g}",
        "compute the rate from the number of updates (or of samples) alone, and scale it by one constant for N ranks",
        step + 1,
    )


def _restored(seen: Seen, alone: Seen, stride: int) -> list[list[float]]:
    """One rank's rates, scaled as this script scales its first; `stride`: at the same part of the training."""
    ours, theirs = seen.ranks[0]["updates"], alone.ranks[0]["updates"]
    if not ours or not theirs or not theirs[0]["rates"][0]:
        return []
    scale = ours[0]["rates"][0] / theirs[0]["rates"][0]
    return [[rate * (scale or 1.0) for rate in made["rates"]] for made in theirs[::stride]]


def _close(one: float, other: float) -> bool:
    return abs(one - other) <= 1e-6 * max(abs(one), abs(other))
