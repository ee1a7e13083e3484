"""The reference: every rank reads the batches of all ranks, so each computes what one process would on all of them.

The same script, model, optimizer and schedule, without dropout in both. What the ranks' averages are then compared with
is no formula but the script itself. How far weights part by rounding alone is measured: the script once more, from
weights that differ in their last bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...bridges.scripts.witnessed import Seen, Stage
from .script_symptom import Symptom, distance, layer_of_most

AMPLIFIED = 50.0  # rounding enters in every step and sum, not once
FLOOR = 1e-5


@dataclass
class Reference:
    """What was compared, and the result."""

    gradient: float | None = None
    weight: float | None = None
    tolerance: float = FLOOR
    step: int | None = None
    layer: str | None = None
    symptoms: list[Symptom] | None = None
    untried: str | None = None

    @property
    def equal(self) -> bool:
        return self.weight is None or self.weight <= self.tolerance


def compare_with_union(stage: Stage, ranks: int, seen: Seen) -> Reference:
    calm: dict[str, Any] = {"quiet": True} if seen.ranks[0]["dropout"] else {}
    base = stage.run(ranks, calm) if calm else seen
    shaken = stage.run(ranks, {**calm, "perturb": True})
    found = Reference()
    if base.problem or not base.updates:
        found.untried = f"the reference could not be computed ({base.problem})"
        return found
    found.tolerance = FLOOR
    if not shaken.problem:
        noise = max(_weights(shaken, base, at)[0] for at in range(min(shaken.updates, base.updates)))
        found.tolerance = max(FLOOR, AMPLIFIED * noise)
    trained = seen.ranks[0]["trained"]
    random = bool(trained) and _draws_on_the_way(base)
    if not trained or random:
        why = (
            "it draws random numbers between loading and backward"
            if random
            else "it reads its batches without a DataLoader"
        )
        found.untried = f"one process on the batches of all ranks could not be tried: {why}"
        return _without_union(stage, ranks, base, calm, found)
    union = stage.run(ranks, {**calm, "union": trained})
    if union.problem or union.updates < base.updates:
        found.untried = (
            f"one process on the batches of all ranks could not be tried ({union.problem or 'it made fewer steps'})"
        )
        return _without_union(stage, ranks, base, calm, found)
    _measure(found, base, union)
    if not found.equal:
        found.symptoms = [_by_change(one, union, calm, found.tolerance, found) for one in _suspects(base)]
    return found


def _measure(found: Reference, base: Seen, other: Seen) -> None:
    first, second = base.array("used0", 0), other.array("used0", 0)
    assert first is not None
    assert second is not None
    found.gradient = distance(first, second, base.ranks[0])[0]
    gaps = [_weights(base, other, at) for at in range(min(base.updates, other.updates))]
    found.weight = max(gap for gap, _ in gaps)
    for at, (gap, _) in enumerate(gaps):
        if gap > found.tolerance:
            one, two = base.array(f"weights{at}", 0), other.array(f"weights{at}", 0)
            assert one is not None
            assert two is not None
            found.step, found.layer = at + 1, layer_of_most(one, two, base.ranks[0], found.tolerance)
            break


def _weights(one: Seen, other: Seen, at: int) -> tuple[float, str | None]:
    first, second = one.array(f"weights{at}", 0), other.array(f"weights{at}", 0)
    return distance(first, second, one.ranks[0]) if first is not None and second is not None else (0.0, None)


def _draws_on_the_way(seen: Seen) -> bool:
    """Random numbers for a batch that has come: for the batches of all ranks they would be others."""
    passes = [one for made in seen.ranks[0]["updates"] for one in made["passes"]]
    return any(one["random"] and one["random"]["later"] for one in passes)


def _suspects(base: Seen) -> list[str]:
    return [
        *(["batchnorm"] if base.ranks[0]["batchnorm"] else []),
        "weigh",
        *(["both"] if base.ranks[0]["batchnorm"] else []),
    ]


def _by_change(name: str, union: Seen, calm: dict[str, Any], tolerance: float, found: Reference) -> Symptom:
    """One change that would make N ranks equal to the reference."""
    change = {**calm, **({"batchnorm": True, "weigh": True} if name == "both" else {name: True})}

    def cured(trial: Seen) -> bool:
        gaps = [_weights(trial, union, at)[0] for at in range(min(trial.updates, union.updates))]
        return trial.updates == union.updates and max(gaps, default=1.0) <= max(tolerance, SYNC_NOISE)

    where = (
        f"step {found.step}: {found.layer} differs from one process on the batches of all ranks by {found.weight:.1e}"
    )
    if name == "weigh":
        return _loss_symptom(where, found, change, cured)
    return Symptom(
        "batchnorm",
        f"{where}: BatchNorm takes its statistics over each rank's own batch",
        "convert the model with SyncBatchNorm (GPUs), or use GroupNorm or LayerNorm",
        "with statistics over all ranks, both are equal",
        found.step,
        found.layer,
        change,
        cured,
    )


SYNC_NOISE = (
    1e-3  # statistics as sums over ranks round otherwise than torch's own kernel, and small variances amplify it
)


def _loss_symptom(where: str, found: Reference, change: dict[str, Any], cured: Any) -> Symptom:
    return Symptom(
        "loss",
        f"{where}: the average over ranks is not the mean over all samples (or tokens)",
        "make the loss a mean over the samples (or tokens) of all ranks: multiply each rank's mean by its count * ranks / "
        "the global count; where ranks have batches of different sizes, use drop_last=True or a DistributedSampler",
        "with each rank weighted by its count, both are equal",
        found.step,
        found.layer,
        change,
        cured,
    )


def _without_union(stage: Stage, ranks: int, base: Seen, calm: dict[str, Any], found: Reference) -> Reference:
    """What a change makes of the weights tells as much, where there is no reference: a script that is right does not move."""
    found.symptoms = []
    for name in _suspects(base)[:2]:
        if name == "weigh" and not _uneven(base):
            continue
        trial = stage.run(ranks, {**calm, name: True})
        if trial.problem or trial.updates < base.updates:
            continue
        _measure(found, base, trial)
        limit = SYNC_NOISE if name == "batchnorm" else found.tolerance
        if found.weight is not None and found.weight > limit:
            found.symptoms = [_by_change(name, trial, calm, found.tolerance, found)]
            return found
        found.weight = found.gradient = None
    return found


def _uneven(seen: Seen) -> bool:
    counts = [[one.get("count") for made in facts["updates"] for one in made["passes"]] for facts in seen.ranks]
    kinds = {one.get("kind") for made in seen.ranks[0]["updates"] for one in made["passes"]}
    return any(one != counts[0] for one in counts[1:]) or "sum" in kinds
