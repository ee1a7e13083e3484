"""The search for a cause: one change after the other, until one makes the strategy equal to `single`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ...errors import ManyhandsError
from ...strategies.contract import Strategy
from .changes import applies
from .fits import Change
from .judge import Judge


@dataclass
class Found:
    """The changes that it takes, the most telling first; none where nothing helped."""

    causes: tuple[Change, ...] = ()
    tried: list[str] = field(default_factory=list)


def find_cause(
    judge: Judge, strategy: Strategy, changes: Sequence[Change], gradient_too: bool, failed: bool = False
) -> Found:
    """One change that makes the strategy equal, else the least of them that do it together."""
    found = Found()
    possible: list[Change] = []
    for change in changes:
        if not applies(change, strategy, failed):
            continue
        equal = _equal(judge, strategy, (change,), gradient_too)
        if equal is None:
            continue
        found.tried.append(change.label)
        if equal:
            found.causes = (change,)
            return found
        possible.append(change)
    together = _one_of_a_kind(possible)
    if len(together) > 1 and _equal(judge, strategy, together, gradient_too):
        for change in reversed(together):
            fewer = tuple(other for other in together if other is not change)
            if fewer and _equal(judge, strategy, fewer, gradient_too):
                together = fewer
        found.causes = together
    return found


def _one_of_a_kind(changes: Sequence[Change]) -> tuple[Change, ...]:
    """For each cause the change that came first."""
    by_cause: dict[str, Change] = {}
    for change in changes:
        by_cause.setdefault(change.cause, change)
    return tuple(by_cause.values())


def _equal(judge: Judge, strategy: Strategy, changes: tuple[Change, ...], gradient_too: bool) -> bool | None:
    """None where the change cannot be tried: a model may not run with it, or a strategy refuse it."""
    judge.fits.say(f"{strategy}: trying it {' and '.join(change.label for change in changes)}")
    try:
        return judge.equal_with(strategy, changes, gradient_too)
    except ManyhandsError:
        return None
    except Exception as problem:  # a change that does not fit what somebody wrote
        judge.fits.say(f"{strategy}: cannot be tried: {type(problem).__name__}: {problem}")
        return None
