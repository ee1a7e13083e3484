"""The judgement: which of the things that were measured holds the job back, if any does.

Every candidate is a cost in milliseconds per step with the gain of being without it. The largest is named, with these
exceptions, because one trouble shows up as another:

    a slow rank                     the others wait for it, which looks like communication
    too many threads or processes   everything takes longer
    the transform of a data set     is a part of reading
    tiny steps                      are named only where nothing else explains them: any fixed cost shrinks with the batch,
                                    a pass that sleeps among them

Nothing is named that rounds cannot tell from noise, and nothing while others use the cores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...record.neighbours import BUSY
from ..intervals import Interval
from .whole import Parts

GAIN, SURE = 1.3, 1.15  # what being without it must bring, in the middle and in the worst round,
ASKED = {
    "communication": (1.4, 1.2),
    "cores": (1.2, 1.1),
}  # where that is something else: ranks that never meet save more
LAUNCH_GAIN = 2.2  # of four times the batch: half the step does not depend on its size
STRAGGLER = 0.25  # of the step that a rank is behind
WALL = 0.3  # of the whole job, its usual start aside, that passes beside its steps
START = 0.35
FORWARD_HEAVY, FORWARD_SHARE = (
    1.5,
    0.45,
)  # forward over backward, and of the step; layers cost about twice as much backward
TRANSFER_SHARE = 0.25
BACKWARD_HEAVY, BACKWARD_SHARE = 4.5, 0.55
OF_LOADING = 0.6
OF_STEP = 0.42  # an update that is less of a tiny step is one of its fixed costs
CROWDS = ("threads", "cores")
BESIDE_STEPS = ("evaluation", "checkpoint", "start")
PHASES_OF = {"loading": ("load",), "augmentation": ("load", "augment"), "update": ("update",)}
THROTTLED = 0.15  # of the time that a quota held the ranks back


@dataclass(frozen=True)
class Cost:
    """What holds the job back, or could: its price per step, and how many times faster the job would be without."""

    bottleneck: str
    cost_ms: float
    gain: float
    rank: int | None = None
    phase: str | None = None


@dataclass(frozen=True)
class Evidence:
    """All that was measured."""

    step_ms: float
    phases_ms: Mapping[str, float]
    gains: Mapping[str, Interval]  # of being without something, by the bottleneck it measures
    slow: Mapping[str, Any] | None  # the slow rank that most slices agree on
    parts: Parts
    steps: int  # of the whole job
    throttled: float  # of the time
    others: float | None  # cores that other processes used
    cores: int
    even_if_busy: bool = False

    def share(self, phase: str) -> float:
        """Of the step."""
        return self.phases_ms.get(phase, 0.0) / (sum(self.phases_ms.values()) or 1.0)


def too_busy(evidence: Evidence) -> bool:
    busy = evidence.others is not None and evidence.others > BUSY * evidence.cores
    return busy and not evidence.even_if_busy


def judge(evidence: Evidence) -> Cost:
    """What holds the job back; `none` where nothing does."""
    nothing = Cost("none", 0.0, 1.0)
    if too_busy(evidence):
        return nothing
    if evidence.throttled > THROTTLED:
        return Cost("cores", evidence.throttled * evidence.step_ms, 1 / max(0.05, 1 - evidence.throttled))
    slow = _straggler(evidence)
    costs = [cost for cost in (*_in_steps(evidence), *_beside_steps(evidence)) if cost is not None]
    largest = max(costs, key=lambda cost: cost.cost_ms, default=None)
    if slow is not None and (largest is None or not _explains(largest, slow)):
        return slow
    launch = _launch(evidence)
    if largest is None:
        return _lopsided(evidence) or launch or nothing
    if launch is not None and largest.bottleneck == "update" and largest.cost_ms < OF_STEP * evidence.step_ms:
        return launch
    crowd = max((cost for cost in costs if cost.bottleneck in CROWDS), key=lambda cost: cost.cost_ms, default=None)
    if crowd is not None and largest.bottleneck not in BESIDE_STEPS:
        return crowd
    transform = next((cost for cost in costs if cost.bottleneck == "augmentation"), None)
    if transform is not None and largest.bottleneck == "loading" and transform.cost_ms >= OF_LOADING * largest.cost_ms:
        return transform
    return largest


def cost_of(gain: float, step_ms: float) -> float:
    return step_ms * (1 - 1 / gain)


def _explains(cost: Cost, slow: Cost) -> bool:
    """Whether another cost is more than a slow rank's: then all ranks suffer, one just a little more."""
    return cost.bottleneck not in ("communication", "lock") and cost.cost_ms > 1.5 * slow.cost_ms


def _straggler(evidence: Evidence) -> Cost | None:
    slow = evidence.slow
    if slow is None or slow["rank"] is None or slow["behind_ms"] < STRAGGLER * evidence.step_ms:
        return None
    behind = min(slow["behind_ms"], 0.95 * evidence.step_ms)
    return Cost(
        "straggler", slow["behind_ms"], evidence.step_ms / (evidence.step_ms - behind), slow["rank"], slow["phase"]
    )


def _in_steps(evidence: Evidence) -> Sequence[Cost | None]:
    found: list[Cost | None] = []
    for name, gain in evidence.gains.items():
        least, worst = ASKED.get(name, (GAIN, SURE))
        if name == "launch" or gain.low < worst:
            continue
        cost = cost_of(gain.middle, evidence.step_ms)
        if name in PHASES_OF:
            # A batch that was used before lies in the caches, and gradients that are never used up are still added up:
            # what the clock saw is the better figure.
            shown = evidence.step_ms * sum(evidence.share(phase) for phase in PHASES_OF[name])
            cost = shown if name == "update" else min(cost, shown)
        without = evidence.step_ms / max(0.02 * evidence.step_ms, evidence.step_ms - cost)
        if without >= least:
            found.append(Cost(name, cost, without))
    return found


def _beside_steps(evidence: Evidence) -> Sequence[Cost | None]:
    parts, per_step = evidence.parts, 1000 / max(1, evidence.steps)
    found: list[Cost | None] = []
    for name, seconds, least in (
        ("evaluation", parts.evaluation, WALL),
        ("checkpoint", parts.checkpoint, WALL),
        ("loading", parts.pause, WALL),
        ("start", parts.own_start, START),
    ):
        if seconds >= least * parts.own:
            found.append(Cost(name, seconds * per_step, parts.total / max(1e-9, parts.total - seconds)))
    return found


def _launch(evidence: Evidence) -> Cost | None:
    gain = evidence.gains.get("launch")
    if gain is None or gain.middle < LAUNCH_GAIN or gain.low < LAUNCH_GAIN * SURE / GAIN:
        return None
    return Cost("launch", cost_of(gain.middle, evidence.step_ms), gain.middle)


def _lopsided(evidence: Evidence) -> Cost | None:
    """A pass, or moving to a GPU, that takes far more of the step than it usually does. Only the phases show it."""
    phases = evidence.phases_ms
    if evidence.share("transfer") > TRANSFER_SHARE:
        gain = 1 / max(0.02, 1 - evidence.share("transfer"))
        return Cost("transfer", evidence.share("transfer") * evidence.step_ms, gain)
    forward, backward, step = phases.get("forward", 0.0), phases.get("backward", 0.0), sum(phases.values()) or 1.0
    if forward > FORWARD_HEAVY * backward and forward > FORWARD_SHARE * step:
        return Cost("forward", forward, step / max(step - forward, 0.05 * step))
    if backward > BACKWARD_HEAVY * forward and backward > BACKWARD_SHARE * step:
        return Cost("backward", backward, step / max(step - backward, 0.05 * step))
    return None
