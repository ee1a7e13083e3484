"""What a verification says: one sentence for what differs and where, and one for what to do."""

from __future__ import annotations

from typing import Any

from ...errors import ManyhandsError
from ...strategies.contract import Strategy
from .distance import Distance
from .judge import Judgement
from .search import Found


def not_equal(judgement: Judgement, place: dict[str, Any], found: Found) -> dict[str, Any]:
    return {"reason": f"{_where(judgement, place)}: {_because(found)}", **_named(found)}


def failed(failure: ManyhandsError, found: Found) -> dict[str, Any]:
    first = str(failure).splitlines()[0]
    because = _because(found) if found.causes else f"tried {_listed(found.tried)}; none made it work"
    return {"reason": f"it fails ({first}): {because}", **_named(found)}


def refused(refusal: ManyhandsError) -> dict[str, Any]:
    return {"reason": f"refused: {refusal}"}


def asynchronous(strategy: Strategy, judgement: Judgement) -> dict[str, Any]:
    far = _far(judgement.weights)
    return {
        "reason": f"its weights end {far} of their size away from those of single, by design: {strategy.traits.exact}",
        "cause": "asynchronous",
        "cure": "use ddp where results must be those of single",
    }


def rounded(before: Distance) -> dict[str, Any]:
    return {
        "reason": f"equal in float64; in float32 weights end {_far(before)} of their size apart, from rounding alone, which "
        "the optimizer or a long chain of steps makes larger",
        "cause": "rounding",
        "cure": "nothing is wrong; where every digit counts use SGD, or freeze parameters that the loss does not depend on",
    }


def _where(judgement: Judgement, place: dict[str, Any]) -> str:
    gradient = judgement.gradient
    what = (
        f"its gradient is off by {_far(gradient)}"
        if gradient is not None and not gradient.same
        else f"its weights are off by {_far(judgement.weights)}"
    )
    step = f"from step {place['first_step']} on" if place["first_step"] else "from the start"
    layer = f', first in "{place["first_layer"]}"' if place["first_layer"] else ""
    return f"{what} {step}{layer}"


def _because(found: Found) -> str:
    if not found.causes:
        return f"the cause was not found; tried {_listed(found.tried)}"
    labels = " and ".join(change.label for change in found.causes)
    whys = "; and ".join(dict.fromkeys(change.why for change in found.causes))
    others = [label for label in found.tried if label not in {change.label for change in found.causes}]
    without = f" (tried before: {_listed(others)})" if others and len(found.causes) == 1 else ""
    return f"{whys}; {labels} it is equal{without}"


def _named(found: Found) -> dict[str, Any]:
    if not found.causes:
        return {"cause": "unknown", "cure": None}
    cures = dict.fromkeys(change.cure for change in found.causes if change.cure)
    return {"cause": found.causes[0].cause, "cure": "; ".join(cures) or None}


def _listed(labels: list[str]) -> str:
    return ", ".join(labels) if labels else "nothing that applies"


def _far(distance: Distance) -> str:
    return f"{distance.difference:.1e}" if distance.difference < 1e300 else "numbers that are not finite"
