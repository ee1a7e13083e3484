"""Slices: short fits of several variants of a job, in turn, so that a machine that slows down slows all of them alike.

    round 1   base  a  b  c      every variant is divided by the base of its own round,
    round 2   base  c  b  a      and every second round goes backwards
    round 3   base  a  b  c

What counts is the time per sample in the steady part of a slice: its first steps, in which loader workers start and
caches fill, are left out.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ..errors import BadInput, RankFailed, Refused
from ..record.run import Run
from ..strategies.contract import Strategy
from ..task import Task
from ..training.proof.tried import Tried
from ..training.run_fit import run_fit
from ..training.settings import FitSettings

WARM_UP = 0.25  # of a slice's steps
FEWEST, FIRST = 8, 12  # steps of a slice, and of one of unknown pace
MOST = 5000
BESIDE_STEPS = 0.95  # of the time in steps, below which it was spent on something else


@dataclass
class Variant:
    """One way of running a job, and what its slices showed."""

    label: str
    task: Task
    strategy: Strategy
    settings: FitSettings
    slices: list[Run | None] = field(default_factory=list)  # one per round; None where it was not run
    problem: str | None = None  # why it cannot be run
    pace: float | None = None  # seconds per step, as last seen
    fewest: int = FEWEST  # steps of a slice

    def __post_init__(self) -> None:
        """All its slices are the same job."""
        self.settings = replace(self.settings, tried=self.settings.tried or Tried())

    @property
    def runs(self) -> list[Run]:
        return [run for run in self.slices if run is not None]


def steady_ms(run: Run) -> float:
    """Milliseconds per step, without the first.

    Ranks that do not wait for each other may make shares of others after their last step: then all of the time counts.
    """
    durations = run.durations_ms
    steps = max(run.steps, len(durations))  # of very many not all are kept
    if durations and run.seconds and statistics.fmean(durations) * steps < BESIDE_STEPS * 1000 * run.seconds:
        return 1000 * run.seconds / steps
    kept = durations[math.floor(len(durations) * WARM_UP) :]
    return statistics.fmean(kept) if kept else math.nan


def per_sample(run: Run) -> float:
    """Milliseconds of a step for each of its samples: variants may have other batches."""
    return steady_ms(run) / (run.batch_size or 1)


def speedups(variant: Variant, base: Variant) -> list[float]:
    """How many times faster than the base of the same round, for each round both were in."""
    both = zip(base.slices, variant.slices, strict=False)
    return [per_sample(one) / per_sample(other) for one, other in both if one is not None and other is not None]


def run_slice(variant: Variant, seconds: float) -> Run | None:
    """A fit of about so many seconds of steps; None, and the reason in `problem`, where there cannot be one."""
    run = _short_fit(variant, seconds)
    if run is not None and run.steps < 0.4 * _steps(variant, seconds):  # its pace was not known
        run = _short_fit(variant, seconds)
    return run


def _steps(variant: Variant, seconds: float) -> int:
    wanted = FIRST if variant.pace is None else round(seconds / max(variant.pace, 1e-6))
    return min(MOST, max(variant.fewest, wanted))


def _short_fit(variant: Variant, seconds: float) -> Run | None:
    steps = _steps(variant, seconds)
    settings = replace(
        variant.settings, run_dir=None, resume=False, checkpoint_every=None, on_step=None, on_epoch=None,
        progress=False, step=replace(variant.settings.step, max_steps=steps),
    )  # fmt: skip
    task = variant.task if settings.step.eval_batches else variant.task.replace(test=None)
    try:
        run = run_fit(task, variant.strategy, settings)
    except (Refused, RankFailed, BadInput) as problem:
        variant.problem = str(problem).splitlines()[0]
        return None
    variant.pace = steady_ms(run) / 1000
    return run


def run_rounds(
    base: Variant,
    others: Sequence[Variant],
    rounds: int,
    seconds: float,
    *,
    until: float = math.inf,
    keep: Callable[[Variant], bool] = lambda variant: True,
    say: Callable[[str], None] = lambda text: None,
) -> None:
    """Rounds of slices, the base first in each; `until` is when to stop (time.monotonic), `keep` who stays in after each.

    A variant that cannot be run is left out, with its `problem`; a base that cannot is an error.
    """
    started = len(base.slices)
    for number in range(rounds):
        turn = [other for other in others if other.problem is None]
        if not turn or time.monotonic() > until:
            break
        for variant in (base, *(turn if number % 2 == 0 else reversed(turn))):
            if time.monotonic() > until and variant is not base:
                continue
            say(f"round {number + 1}: {variant.label}")
            while len(variant.slices) < started + number:
                variant.slices.append(None)
            variant.slices.append(run_slice(variant, seconds))
            if base.problem is not None:
                raise RankFailed(base.problem)
        others = [other for other in turn if other.problem is None and keep(other)]
