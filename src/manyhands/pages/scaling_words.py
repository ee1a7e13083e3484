"""Where more ranks stop paying, in words, and why: cores that are all at work already, or the phase that grew most.

Said only as far as the rounds allow: further ranks must have brought too little in every one of them, and a phase must
have taken longer in every one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from ..record.run import Run
from .costs import costs, samples_of_a_core
from .doubt import advice, evidence
from .figures import kind, phase_times, speed, taken_share
from .phrases import joined, process
from .scaling import Scaling, at_work, cores, point, scalings, surely_not_worth

GREW = 1.1  # a phase whose time of a step is longer by less has only failed to shrink
WORTH_NAMING = 0.15  # of the time lost: a phase that grew by less explains nothing
NOTHING = 1.03  # a ratio below is no gain
PHASES = {
    "load": "loading",
    "transfer": "the transfer to the device",
    "augment": "augmentation",
    "wait": "waiting",
    "update": "updating the weights",
    "other": "the time between the phases",
}


def scaling_sentences(runs: Sequence[Run]) -> list[str]:
    """One sentence for every strategy that ran with several numbers of ranks, the fastest first."""
    ordered = sorted(scalings(runs), key=lambda one: -max(speed(run) or 0.0 for run in one.runs))
    return [_weak(_sentence(one)) if one.weak else _sentence(one) for one in ordered]


def _weak(sentence: str) -> str:
    beginning = f"w{sentence[1:]}" if sentence.startswith("Whether") else sentence
    return f"With a batch that grows with the ranks, {beginning}"


def _sentence(one: Scaling) -> str:
    if not one.over_itself and all(_ratio(one, run) < NOTHING for run in one.runs):
        return f"{_gains(one, one.runs)}: no number of ranks pays."
    place = one.last_that_paid()
    paid, further = one.runs[place], one.runs[place + 1 :]
    if not further:
        most = f": it pays up to {_ranks(paid)}, the most tried" if len(one.runs) > 2 else ""
        return f"{_gains(one, one.runs)}{most}."
    if not surely_not_worth(further[0], paid):
        return _unknown(one, place)
    why = (
        None if taken_share(paid) or taken_share(further[0]) else _why(paid, further[0])
    )  # others may be the reason then
    because = f", because {why}" if why else ""
    if paid is one.base:
        gains = joined([f"{_times(one, run)} on {run.ranks}" for run in further])
        amount = "nothing" if _ratio(one, further[0]) < NOTHING else "little"
        return f"{one.name} gains {amount} beyond {_ranks(paid)} ({gains}){because}."
    return f"{_gains(one, one.runs)}: beyond {paid.ranks} it stops paying{because}."


def _unknown(one: Scaling, place: int) -> str:
    paid, following = one.runs[place], one.runs[place + 1]
    doubt = f"cannot be told from {evidence([paid, following])}: {advice([paid, following])}."
    if paid is one.base:
        return f"Whether {one.name} gains beyond {_ranks(paid)} {doubt}"
    return f"{_gains(one, one.runs[: place + 1])}; whether it gains beyond {paid.ranks} {doubt}"


def _gains(one: Scaling, runs: Sequence[Run]) -> str:
    """`ddp is 1.8x faster on 2 ranks and 1.9x on 4 than on 1`."""
    shown = [run for run in runs if run is not one.base]
    against = f"on {one.base.ranks}" if one.over_itself else process(one.base)
    comparing = ("faster", "than") if all(_ratio(one, run) >= NOTHING for run in shown) else ("as fast", "as")
    parts = [f"{_times(one, run)} on {run.ranks}" for run in shown]
    parts[0] = f"{_times(one, shown[0])} {comparing[0]} on {_ranks(shown[0])}"
    return f"{one.name} is {joined(parts)} {comparing[1]} {against}"


def _ratio(one: Scaling, run: Run) -> float:
    return point(run, one.base).speedup


def _times(one: Scaling, run: Run) -> str:
    ratio = _ratio(one, run)
    return f"{ratio:.{2 if ratio < 1.095 else 1 if ratio < 9.95 else 0}f}x"


def _why(paid: Run, further: Run) -> str | None:
    grown = _phase_that_grew(paid, further)
    full = _no_more_hardware(paid, further)
    if full and grown:
        return f"{full}, and {grown}"
    return full or grown


def _no_more_hardware(paid: Run, further: Run) -> str | None:
    """Cores or GPUs that were all at work with fewer ranks: what more of them can only share."""
    if kind(further) != "cpu":
        devices = len(set(further.devices))
        return f"{further.ranks} ranks share {_amount(devices, 'GPU')}" if 0 < devices < further.ranks else None
    known = cores(further)
    if known is None:
        return None
    if further.ranks > known:
        return f"{further.ranks} ranks share {_amount(int(known), 'core')}"
    used = at_work(paid) * (paid.threads or 1)
    if used < at_work(further) * (further.threads or 1):
        return None
    threads = _amount(paid.threads or 1, "thread")
    use = f"{threads} already uses" if paid.ranks == 1 else f"{threads} each already use"
    part = f"{used:g} of the" if used < known else "the"
    return f"{_ranks(paid)} with {use} {part} {_amount(int(known), 'core')}"


def _phase_that_grew(paid: Run, further: Run) -> str | None:
    """The phase whose cost per sample grew most."""
    before, after = _costs(paid), _costs(further)
    turns = list(zip(before, after, strict=False))
    if len(turns) < 2:  # once is no more than chance
        return None
    more = {name: median(late[name] - early[name] for early, late in turns) for name in after[0]}
    lost, name = sum(more.values()), max(more, key=lambda phase: more[phase])
    always = all(late[name] > early[name] for early, late in turns)
    if not always or lost <= 0 or more[name] < WORTH_NAMING * lost:
        return None
    early = median(cost[name] for cost in before) * samples_of_a_core(paid)
    late = median(cost[name] for cost in after) * samples_of_a_core(further)
    word = PHASES.get(name, name)
    if late > GREW * early:
        return f"{word} grew from {early:.1f} to {late:.1f} ms per step"
    return f"{word} still takes {late:.1f} ms per step on {further.ranks} ({early:.1f} on {paid.ranks})"


def _costs(run: Run) -> list[dict[str, float]]:
    """What a sample costs, by phase, in every round."""
    known = [times for of_round in run.round_phases_ms or [] if (times := phase_times(run, of_round))]
    return [costs(run, times) for times in known]


def _ranks(run: Run) -> str:
    return _amount(run.ranks, "rank")


def _amount(value: int, noun: str) -> str:
    return f"{value} {noun}{'s' * (value != 1)}"
