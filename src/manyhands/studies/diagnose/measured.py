"""What is found out about a job: slices of it as it is and with one thing changed each, and what they come to."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ...errors import RankFailed
from ...record.neighbours import Neighbours
from ...record.run import PHASES, Run
from ...record.slow_rank import agreed
from ...record.throttling import Throttling
from ...world.engines.engine import Engine
from ..intervals import Interval, interval
from ..slices import Variant, run_rounds, run_slice, speedups, steady_ms
from .advice import without
from .changes import Change, changes
from .job import Diagnosed
from .judge import Evidence
from .whole import HARDLY, Parts, parts_of, run_stretch, starts_slowly, trivial_start

SLICE_SECONDS = 0.6
ROUNDS, LOOKS = 3, 2  # of experiments, and slices of the job alone before them
# Gains in the first rounds after which something is not tried again: a change, and something that is taken away.
DROPPED, DROPPED_COST = 1.0, 1.05
PASSES = 0.6  # of the time in proportion
SLOW_START = 4.0  # seconds
BESIDE = {
    "evaluation": "no evaluation",
    "checkpoint": "no checkpoints",
    "own_start": "a task that starts at once",
    "pause": "no pause between epochs",
}


@dataclass
class Measured:
    """A job, and what is found out about it."""

    job: Diagnosed
    stretch: Run
    tried: list[Change] = field(default_factory=list)
    skipped: list[dict[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.base = self.job.variant()
        self.base.pace = steady_ms(self.stretch) / 1000
        self.neighbours, self.throttling = Neighbours(), Throttling()

    def look(self, say: Callable[[str], None]) -> None:
        """The job alone: how it spends its steps, and a longer stretch of it where the first was too short."""
        self.neighbours.begin()
        self.throttling.begin()
        for number in range(LOOKS if (self.stretch.startup_seconds or 0.0) < SLOW_START else 1):
            say(f"measurement {number + 1}: the job as it is")
            self.base.slices.append(run_slice(self.base, SLICE_SECONDS))
            if self.base.problem is not None:
                raise RankFailed(self.base.problem)
        if self.stretch.steps < self.job.steps:
            say("start, evaluation and checkpoints")
            self.stretch = run_stretch(self.job, self.base.pace)

    def experiment(self, until: float, budget: float, say: Callable[[str], None]) -> None:
        parts = self.parts()
        if parts.steps < HARDLY * parts.own:
            reason = f"steps are {parts.steps / parts.total:.0%} of the job's time"
            self.skipped = [{"change": "anything about the steps", "reason": reason}]
            return
        self.tried, self.skipped = changes(self.job, self.base.runs[-1], budget)
        variants = [change.variant for change in self.tried]
        limits = {id(change.variant): DROPPED if change.command else DROPPED_COST for change in self.tried}

        def keep(variant: Variant) -> bool:
            ratios = speedups(variant, self.base)
            return not ratios or interval(ratios).middle > limits[id(variant)]

        run_rounds(self.base, variants, ROUNDS, SLICE_SECONDS, until=until, keep=keep, say=say)
        for variant in variants:
            if not variant.runs:
                reason = variant.problem or "the budget was spent; use a larger --budget"
                self.skipped.append({"change": variant.label, "reason": reason})

    # ------------------------------------------------------------ what it comes to

    def parts(self) -> Parts:
        """Of the whole job."""
        floor = self.trivial_start if starts_slowly(self.job, self.stretch, self.step_ms) else None
        return parts_of(self.job, self.stretch, self.step_ms, floor)

    @cached_property
    def trivial_start(self) -> float:
        """How long a job of nothing takes to start; asked only where this one takes long."""
        return trivial_start(self.job.strategy, self.job.settings)

    @property
    def step_ms(self) -> float:
        times = sorted(steady_ms(run) for run in self.base.runs)
        return times[len(times) // 2] if times else float("nan")

    @property
    def phases_ms(self) -> dict[str, float]:
        """The middle slice's."""
        runs = sorted(self.base.runs, key=steady_ms)
        phases = runs[len(runs) // 2].phases_ms or {}
        return {name: phases.get(name) or 0.0 for name in PHASES}

    def gains(self) -> dict[str, Interval]:
        """Of being without something: of several that take away the same, the largest."""
        found: dict[str, Interval] = {}
        for change in self.tried:
            ratios = speedups(change.variant, self.base)
            if change.measures is not None and ratios and not self._computes_more(change):
                gain = interval(ratios)
                if change.measures not in found or gain.middle > found[change.measures].middle:
                    found[change.measures] = gain
        return found

    def _computes_more(self, change: Change) -> bool:
        """Whether a larger batch takes its passes longer in proportion: then it is not the passes whose cost is fixed."""
        larger = change.variant.task.batch_size / self.job.task.batch_size
        then = statistics.median(_passes_ms(run) for run in change.variant.runs)
        return larger > 1 and then > PASSES * larger * statistics.median(_passes_ms(run) for run in self.base.runs)

    def evidence(self, even_if_busy: bool) -> Evidence:
        elsewhere = isinstance(self.job.settings.on, Engine) and self.job.settings.on.elsewhere  # cores unknown here
        others = None if elsewhere else self.neighbours.cores_of_others()
        return Evidence(
            step_ms=self.step_ms,
            phases_ms=self.phases_ms,
            gains=self.gains(),
            slow=agreed([run.suspect for run in self.base.runs]),
            parts=self.parts(),
            steps=self.job.steps,
            throttled=self.throttling.share(),
            others=others,
            even_if_busy=even_if_busy,
            cores=self.job.cores,
        )

    def ends(self, parts: Parts) -> tuple[Parts, Parts]:
        """Of the whole job, with its fastest and its slowest steps."""
        times = [steady_ms(run) * self.job.steps / 1000 for run in self.base.runs]
        return replace(parts, steps=min(times)), replace(parts, steps=max(times))

    def experiments(self, parts: Parts) -> list[dict[str, Any]]:
        found, ends = [], self.ends(parts)
        for change in self.tried:
            if ratios := speedups(change.variant, self.base):
                middle = statistics.median(steady_ms(run) for run in change.variant.runs)
                found.append(_experiment(change.label, middle, interval(ratios)))
        for part, label in BESIDE.items():
            if getattr(ends[0], part):
                found.append(_experiment(label, self.step_ms, without(part, ends)))
        return found


def _passes_ms(run: Run) -> float:
    return sum((run.phases_ms or {}).get(name) or 0.0 for name in ("forward", "backward"))


def _experiment(change: str, step_ms: float, gain: Interval) -> dict[str, Any]:
    return {"change": change, "step_ms": step_ms, "speedup": gain.middle, "interval": [gain.low, gain.high]}
