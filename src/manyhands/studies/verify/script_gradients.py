"""Weights and gradients over ranks: equal at the start, averaged before they are clipped and used, scaled once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ...bridges.scripts.witnessed import Seen
from .script_symptom import SAME, Symptom, apart, distance, over_ranks, updates

WRAP = "wrap the model in DistributedDataParallel and call the wrapped model"
OFF = 0.01  # a factor that differs from one by more was meant


def gradient_symptoms(seen: Seen, alone: Seen | None) -> Iterator[Symptom]:
    ranks = len(seen.ranks)
    if not any(facts["group"] for facts in seen.ranks):
        yield Symptom(
            "not_reduced",
            f"step 1: the script never joins a process group, so {ranks} ranks train {ranks} models of their own",
            f"call torch.distributed.init_process_group and {WRAP}",
            step=1,
        )
        return
    gap, rank, layer = apart(seen, "start")
    if gap > 0:
        yield Symptom(
            "weights",
            f"step 1: rank {rank} starts from other weights than rank 0 ({layer or 'first layer'}, {gap:.1e} apart)",
            "broadcast rank 0's weights before training (DistributedDataParallel does), or seed all ranks alike "
            "while the model is made",
            "with rank 0's weights broadcast, the ranks start equal",
            1,
            layer,
            {"broadcast": True},
            lambda trial: apart(trial, "start")[0] == 0,
        )
    yield from _reduction(seen)
    yield from _scale(seen, alone)
    yield from _drift(seen)


def _reduction(seen: Seen) -> Iterator[Symptom]:
    """The first update whose gradients were not averaged when they were clipped, or used."""
    for number, told in updates(seen):
        gap, rank, layer = apart(seen, f"used{number}")
        if gap > SAME:
            yield Symptom(
                "not_reduced",
                f"step {number + 1}: the gradient of {layer} on rank {rank} is its own, not the average over ranks"
                + _why(seen, told),
                _how_to_reduce(seen, told),
                "with gradients averaged from outside, all ranks use the same",
                number + 1,
                layer,
                {"reduce": True},
                _reduced,
            )
            return
        clips = [clip for one in told for clip in one["clips"] if clip["active"]]
        gap, rank, layer = apart(seen, f"clipped{number}")
        if gap > SAME and clips:
            norms = [one["clips"][0]["norm"] for one in told if one["clips"]]
            yield _clipping(number, rank, layer, f" (norms {_listed(norms)})" if None not in norms else "")
            return
        if not clips and _bent(seen, number):
            yield _clipping(number, 1, None, "", by_hand=True)
            return


def _clipping(number: int, rank: int, layer: str | None, norms: str, by_hand: bool = False) -> Symptom:
    return Symptom(
        "clipping",
        f"step {number + 1}: each rank clips its own gradient{norms} before they are averaged",
        "average gradients over ranks first, then clip: with DistributedDataParallel, clip after the last backward pass",
        "with gradients averaged before the clipping, all ranks clip by the same norm",
        number + 1,
        layer,
        {"reduce": True},
        _shrunk
        if by_hand
        else lambda trial: all(apart(trial, f"clipped{at}")[0] < SAME for at in range(trial.updates)),
    )


def _bent(seen: Seen, number: int) -> bool:
    """All ranks use the same gradient, but no multiple of the average: something was done to each rank's own."""
    own, used = over_ranks(seen, f"own{number}"), over_ranks(seen, f"used{number}")
    if not own or not used or not np.any(own):
        return False
    mean = np.mean(own, axis=0)
    return distance(used[0], _multiple(used[0], mean) * mean, seen.ranks[0])[0] > 10 * SAME


def _multiple(used: np.ndarray, mean: np.ndarray) -> float:
    squares = float(mean @ mean)
    return float(used @ mean) / squares if squares else 1.0


def _reduced(trial: Seen) -> bool:
    return all(apart(trial, f"used{at}")[0] < SAME for at in range(trial.updates))


def _shrunk(trial: Seen) -> bool:
    """Averaged first, the gradient is the average again, and shorter where it was clipped."""
    factors = []
    for number in range(trial.updates):
        own, used = over_ranks(trial, f"own{number}"), over_ranks(trial, f"used{number}")
        if not own or not used or _bent(trial, number):
            return False
        factors.append(_multiple(used[0], np.mean(own, axis=0)))
    return min(factors, default=1.0) < 1 - OFF < max(factors, default=1.0) + 1


def _why(seen: Seen, told: list[dict[str, Any]]) -> str:
    if any(facts["bypassed"] for facts in seen.ranks):
        return ": the forward pass goes around the wrapper (model.module)"
    if not all(one["synced"] for one in told):
        return ": the last backward pass before the update ran under no_sync"
    if not any(facts["wrapped"] for facts in seen.ranks) and not seen.ranks[0]["collectives"]:
        return ": nothing averages them"
    return ""


def _how_to_reduce(seen: Seen, told: list[dict[str, Any]]) -> str:
    if any(facts["bypassed"] for facts in seen.ranks):
        return "call the wrapped model, not model.module: the wrapper's forward prepares the reduction"
    if not all(one["synced"] for one in told):
        return "leave no_sync (require_backward_grad_sync = False) for the last backward pass of each update"
    if any(facts["wrapped"] for facts in seen.ranks):
        return "train only parameters of the wrapped model, and wrap it after all of them require gradients"
    return f"{WRAP}, or all-reduce every gradient and divide by the number of ranks before optimizer.step()"


def _scale(seen: Seen, alone: Seen | None) -> Iterator[Symptom]:
    """Averaged once, divided once: the reduction's factor times the losses' own factors is one."""
    ranks = len(seen.ranks)
    for number, told in updates(seen):
        own, used = (
            over_ranks(seen, f"own{number}"),
            over_ranks(seen, f"clipped{number}") or over_ranks(seen, f"used{number}"),
        )
        if not own or not used or own[0].shape != used[0].shape or not np.any(own) or _bent(seen, number):
            continue
        factor = _multiple(used[0], np.mean(own, axis=0))
        passes = told[0]["passes"]
        weight = _weight(told[0])
        together = _accumulated(told[0])
        summed = any(one.get("kind") == "sum" for one in passes)
        if together < 2 and abs(factor - ranks) < OFF * ranks and not summed and abs(weight * ranks - 1) > OFF:
            yield Symptom(
                "not_reduced",
                f"step {number + 1}: gradients are summed over ranks where the loss is a mean over samples: "
                f"updates are {ranks} times too large",
                "divide by the number of ranks after all_reduce (or use ReduceOp.AVG)",
                step=number + 1,
                layer=seen.ranks[0]["names"][0],
            )
            return
        before = _weight(alone.ranks[0]["updates"][number]) if alone is not None and number < alone.updates else None
        if together < 2 and before and not summed and abs(factor * weight * ranks / before - 1) < OFF:
            yield Symptom(
                "loss",
                f"step {number + 1}: the loss is divided by the number of ranks and gradients are averaged over ranks too: "
                f"updates are {ranks} times too small",
                "leave the division to the average: call backward on the mean over this rank's samples",
                step=number + 1,
                layer=seen.ranks[0]["names"][0],
            )
            return
        if together >= 2 and seen.ranks[0]["optimizers"] == 1 and not (summed and weight == together):
            total = factor * (sum(one["factor"] * one["count"] for one in passes) if summed else weight)
            if abs(total - 1) > OFF and (len(told[0]["clips"]) == 0 or abs(weight - 1) > OFF):
                yield _accumulation(seen, number, together, passes, total)
                return


def _weight(told: dict[str, Any]) -> float:
    return float(sum(one.get("factor", 1.0) for one in told["passes"]))


def _accumulated(told: dict[str, Any]) -> int:
    """How many batches an update is made of; 0 where its backward passes are not one for each batch."""
    passes = told["passes"]
    if told["fetched"]:
        return len(passes) if told["fetched"] == len(passes) else 0
    return len(passes) if len({tuple(one["rows"]) for one in passes}) == len(passes) else 0


def _accumulation(seen: Seen, number: int, batches: int, passes: list[dict[str, Any]], total: float) -> Symptom:
    factor = passes[0].get("factor", 1.0)
    divided = "is not divided" if abs(factor - 1) < OFF else f"is divided by {1 / factor:.4g}"
    return Symptom(
        "accumulation",
        f"step {number + 1}: {batches} batches are accumulated and each loss {divided}: the gradient is "
        f"{total:.3g} times the mean over their samples",
        f"divide each loss by the number of batches in its group (here {batches})",
        "with gradients divided from outside, each update is the mean over its batches",
        number + 1,
        seen.ranks[0]["names"][0],
        {"divide": True},
        lambda trial: abs(_used_factor(trial, number, passes) - 1) < OFF,
    )


def _used_factor(trial: Seen, number: int, passes: list[dict[str, Any]]) -> float:
    own = over_ranks(trial, f"own{number}")
    used = over_ranks(trial, f"clipped{number}") or over_ranks(trial, f"used{number}")
    if not own or not used:
        return 0.0
    weight = sum(one.get("factor", 1.0) for one in passes)
    return _multiple(used[0], np.mean(own, axis=0) / weight) if weight else 0.0


def _drift(seen: Seen) -> Iterator[Symptom]:
    """Weights that part although ranks used equal gradients."""
    for number, told in updates(seen):
        gap, rank, layer = apart(seen, f"weights{number}")
        if gap <= SAME:
            continue
        if told[0]["rates"] != told[rank]["rates"]:
            first = [
                one["rates"] for one in (facts["updates"][at] for at in range(seen.updates) for facts in seen.ranks[:1])
            ]
            yield Symptom(
                "schedule",
                f"step {number + 1}: rank {rank} has another learning rate than rank 0 "
                f"({told[rank]['rates'][0]:.3g} against {told[0]['rates'][0]:.3g})",
                "compute the rate from the step alone, the same on every rank",
                "with rank 0's rates on all ranks, the weights stay equal",
                number + 1,
                layer,
                {"rates": first},
                lambda trial: all(apart(trial, f"weights{at}")[0] <= SAME for at in range(trial.updates)),
            )
        return


def _listed(norms: list[Any]) -> str:
    return " and ".join(f"{one:.3g}" for one in norms[:4])
