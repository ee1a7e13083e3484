"""The verdict in words: what holds the job back and what it costs, why that is so, and what helps."""

from __future__ import annotations

from collections.abc import Sequence

from .advice import Advice
from .job import Diagnosed
from .judge import Cost, Evidence, too_busy
from .whole import HARDLY

WHAT = {
    "loading": "Reading the data holds this job back",
    "augmentation": "Augmentation holds this job back",
    "transfer": "Moving batches to the device holds this job back",
    "forward": "The forward pass holds this job back",
    "backward": "The backward pass holds this job back",
    "communication": "Communication between ranks holds this job back",
    "lock": "Waiting for the lock holds this job back",
    "threads": "The number of threads holds this job back",
    "cores": "Too few cores for what runs on them hold this job back",
    "launch": "Steps are so small that their fixed cost holds this job back",
    "update": "Updating the weights holds this job back",
    "evaluation": "Evaluation holds this job back",
    "checkpoint": "Writing checkpoints holds this job back",
    "start": "Start-up holds this job back",
}


def verdict(job: Diagnosed, evidence: Evidence, cost: Cost, advice: Sequence[Advice]) -> str:
    """Two or three sentences."""
    if too_busy(evidence):
        return (
            f"No verdict: other processes use {evidence.others:.1f} of the {evidence.cores} cores, which changes every "
            "figure. Try again when the machine is quiet, or use --even-if-busy."
        )
    return " ".join(filter(None, (_trouble(evidence, cost), _not_to_blame(job, evidence, cost), _help(cost, advice))))


def _trouble(evidence: Evidence, cost: Cost) -> str:
    if cost.bottleneck == "none" and evidence.parts.steps < HARDLY * evidence.parts.total:
        parts = evidence.parts
        return (
            f"No bottleneck was found: the whole job takes {parts.total:.1f} s, of which its steps are {parts.steps:.1f} s; "
            f"starting takes {parts.start:.1f} s, as it does for any job of this kind."
        )
    if cost.bottleneck == "none":
        phases = evidence.phases_ms
        computing = sum(phases.get(name, 0.0) for name in ("forward", "backward")) / (sum(phases.values()) or 1.0)
        return f"No bottleneck was found: {computing:.0%} of the step is forward and backward pass."
    if cost.bottleneck == "straggler":
        return (
            f"Rank {cost.rank} holds the others back: in `{cost.phase}` it is {cost.cost_ms:.1f} ms per step behind "
            f"(a step takes {evidence.step_ms:.1f} ms)."
        )
    return (
        f"{WHAT[cost.bottleneck]}: it costs {cost.cost_ms:.1f} ms per step (a step takes {evidence.step_ms:.1f} ms); "
        f"without it the job would be {cost.gain:.1f}x faster."
    )


def _not_to_blame(job: Diagnosed, evidence: Evidence, cost: Cost) -> str | None:
    """That the strategy is not the trouble, where one might think so."""
    if job.ranks == 1 or cost.bottleneck not in ("loading", "augmentation", "evaluation", "checkpoint", "start"):
        return None
    talking = (evidence.phases_ms.get("communication", 0.0) + evidence.phases_ms.get("wait", 0.0)) / max(
        1e-9, sum(evidence.phases_ms.values())
    )
    return f"{job.strategy.name} is not the cause: its ranks talk and wait for {talking:.0%} of the step."


def _help(cost: Cost, advice: Sequence[Advice]) -> str:
    if not advice:
        return (
            "Nothing to gain: no change that was tried helps."
            if cost.bottleneck == "none"
            else "No change that was tried helps."
        )
    best = advice[0]
    text = f"What helps most is {best.label}: {best.gain.middle:.1f}x ({best.gain.low:.1f} to {best.gain.high:.1f})."
    return f"{text} Note: {best.training}." if best.training else text
