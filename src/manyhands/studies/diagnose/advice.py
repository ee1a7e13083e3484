"""Advice: the changes that help, each with the gain that was measured; of those that gain alike the simplest comes first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...training.settings import FitSettings
from ..intervals import Interval, interval
from ..slices import Variant, speedups
from .changes import Change
from .job import Diagnosed
from .whole import Parts

WORTH, CLEARLY = 1.15, 1.05  # the gain of a change that is advised, in the middle and in the worst round,
WORTH_MORE, MORE_CLEARLY = 1.3, 1.15  # and of one that changes the training
TIED = 0.75  # of what is gained
SELDOM = "60s"  # between checkpoints


@dataclass(frozen=True)
class Advice:
    """A change that can be made, and what it gains."""

    label: str
    gain: Interval
    command: str
    training: str | None
    variant: Variant | None  # of the steps,
    settings: FitSettings | None  # or of what passes beside them

    def record(self) -> dict[str, object]:
        return {"change": self.label, "speedup": self.gain.middle, "command": self.command, "training": self.training}


def advice(job: Diagnosed, base: Variant, tried: Sequence[Change], ends: tuple[Parts, Parts]) -> list[Advice]:
    """What helps, best first. `ends` are the parts of the whole job with its fastest and its slowest steps."""
    found = [*_of_steps(base, tried), *_beside_steps(job, ends)]
    helpful = [one for one in found if _is_worth_it(one)]
    ordered: list[Advice] = []
    while helpful:
        best = max(one.gain.middle for one in helpful)
        tied = [one for one in helpful if one.gain.middle - 1 >= TIED * (best - 1)]
        chosen = min(tied, key=lambda one: one.training is not None)  # the first of those that train the same
        ordered.append(chosen)
        helpful.remove(chosen)
    return ordered


def _is_worth_it(one: Advice) -> bool:
    middle, low = (WORTH, CLEARLY) if one.training is None else (WORTH_MORE, MORE_CLEARLY)
    return one.gain.middle >= middle and one.gain.low >= low


def _of_steps(base: Variant, tried: Sequence[Change]) -> list[Advice]:
    return [
        Advice(change.label, interval(ratios), change.command, change.training, change.variant, None)
        for change in tried
        if change.command is not None and (ratios := speedups(change.variant, base))
    ]


def without(part: str, ends: tuple[Parts, Parts], left: float = 0.0) -> Interval:
    """The whole job's gain where of a part of it only `left` (0 to 1) is left."""
    gains = [parts.total / max(1e-9, parts.total - (1 - left) * getattr(parts, part)) for parts in ends]
    return Interval(sum(gains) / 2, min(gains), max(gains))


def _beside_steps(job: Diagnosed, ends: tuple[Parts, Parts]) -> list[Advice]:
    found, settings = [], job.settings
    if ends[0].evaluation and job.epochs > settings.step.eval_every:
        rare = replace(settings, step=replace(settings.step, eval_every=job.epochs))
        gain = without("evaluation", ends, settings.step.eval_every / job.epochs)
        command = job.command(eval_every=job.epochs)
        found.append(Advice("evaluation at the end only", gain, command, None, None, rare))
    if ends[0].checkpoint:
        seldom = replace(settings, checkpoint_every=SELDOM)
        gain, command = without("checkpoint", ends), job.command(checkpoint_every=SELDOM)
        found.append(Advice("a checkpoint per minute", gain, command, None, None, seldom))
    return found
