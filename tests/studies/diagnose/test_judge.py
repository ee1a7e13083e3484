"""The judgement, from figures handed in: what is named, and what is not."""

from __future__ import annotations

from typing import Any

import pytest

from manyhands.studies.diagnose.judge import Evidence, judge
from manyhands.studies.diagnose.whole import Parts
from manyhands.studies.intervals import Interval

HEALTHY = {"load": 0.5, "forward": 3.0, "backward": 6.0, "update": 0.5}
WHOLE = Parts(start=1.0, own_start=0.0, steps=20.0, evaluation=1.0, checkpoint=0.0, pause=0.0)


def gain(middle: float, low: float | None = None) -> Interval:
    return Interval(middle, low or middle, middle)


def evidence(**given: Any) -> Evidence:
    facts: dict[str, Any] = {
        "step_ms": 10.0, "phases_ms": HEALTHY, "gains": {}, "slow": None, "parts": WHOLE, "steps": 2000,
        "throttled": 0.0, "others": 0.1, "cores": 2,
    }  # fmt: skip
    return Evidence(**{**facts, **given})


def slow(rank: int | None, behind: float) -> dict[str, Any]:
    return {"rank": rank, "phase": "forward", "behind_ms": behind}


READING = {"load": 7.0, "forward": 1.0, "backward": 2.0}
TALKING = {"forward": 2.0, "backward": 3.0, "communication": 4.0, "wait": 1.0}


@pytest.mark.parametrize(
    ("named", "given"),
    [
        ("none", {}),
        ("none", {"gains": {"threads": gain(1.1), "communication": gain(1.2), "launch": gain(1.6)}}),
        ("loading", {"phases_ms": READING, "gains": {"loading": gain(3.0), "threads": gain(1.05)}}),
        ("augmentation", {"phases_ms": READING, "gains": {"loading": gain(3.3), "augmentation": gain(2.5)}}),
        ("loading", {"phases_ms": READING, "gains": {"loading": gain(3.3), "augmentation": gain(1.4)}}),
        ("threads", {"gains": {"threads": gain(8.0), "launch": gain(3.0)}}),
        ("cores", {"gains": {"cores": gain(1.8)}}),
        ("cores", {"throttled": 0.6}),
        ("communication", {"phases_ms": TALKING, "gains": {"communication": gain(1.9)}}),
        ("lock", {"gains": {"lock": gain(2.0)}}),
        ("update", {"phases_ms": {"forward": 1.0, "backward": 2.0, "update": 7.0}, "gains": {"update": gain(3.0)}}),
        ("launch", {"gains": {"launch": gain(3.1)}}),
        ("launch", {"gains": {"launch": gain(3.1), "update": gain(1.5)}, "phases_ms": {**HEALTHY, "update": 4.0}}),
        ("straggler", {"slow": slow(1, 4.0)}),
        ("straggler", {"slow": slow(1, 4.0), "gains": {"communication": gain(4.0)}, "phases_ms": TALKING}),
        ("loading", {"slow": slow(1, 2.0), "phases_ms": READING, "gains": {"loading": gain(4.0)}}),
        ("none", {"slow": slow(1, 1.0)}),
        ("none", {"slow": slow(None, 8.0)}),  # a server
        ("evaluation", {"parts": Parts(1.0, 0.0, 20.0, 40.0, 0.0, 0.0)}),
        ("checkpoint", {"parts": Parts(1.0, 0.0, 20.0, 1.0, 30.0, 0.0)}),
        ("loading", {"parts": Parts(1.0, 0.0, 20.0, 1.0, 0.0, 30.0)}),
        ("start", {"parts": Parts(30.0, 29.0, 20.0, 1.0, 0.0, 0.0)}),
        ("none", {"parts": Parts(30.0, 0.0, 2.0, 0.1, 0.0, 0.0)}),  # a short job of ours starts as slowly
        ("forward", {"phases_ms": {"forward": 8.0, "backward": 2.0}}),
        ("forward", {"phases_ms": {"forward": 8.0, "backward": 2.0}, "gains": {"launch": gain(3.5)}}),  # it sleeps
        ("transfer", {"phases_ms": {"transfer": 4.0, "forward": 2.0, "backward": 4.0}}),
        ("backward", {"phases_ms": {"forward": 1.0, "backward": 9.0}}),
    ],
)
def test_what_is_named(named: str, given: dict[str, Any]) -> None:
    cost = judge(evidence(**given))
    assert cost.bottleneck == named
    assert (cost.cost_ms > 0) == (named != "none")
    assert cost.rank == (1 if named == "straggler" else None)


def test_what_one_round_does_not_show_is_not_named() -> None:
    assert judge(evidence(phases_ms=READING, gains={"loading": gain(3.0, low=1.0)})).bottleneck == "none"


def test_a_warm_batch_is_no_proof_of_slow_reading() -> None:
    """Kept batches lie in the caches: a step won 1.6x where a fifth of it was reading, and a healthy job was accused."""
    phases = {"load": 1.8, "forward": 2.6, "backward": 3.9, "update": 0.3}
    assert judge(evidence(phases_ms=phases, gains={"loading": gain(1.6, low=1.33)})).bottleneck == "none"


@pytest.mark.parametrize(
    ("others", "even", "named"), [(0.25, False, "loading"), (0.9, False, "none"), (0.9, True, "loading")]
)
def test_no_verdict_beside_others_unless_asked_for(others: float, even: bool, named: str) -> None:
    given = evidence(phases_ms=READING, gains={"loading": gain(3.0)}, others=others, even_if_busy=even)
    assert judge(given).bottleneck == named
