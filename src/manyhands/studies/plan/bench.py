"""The bench: short slices of a job, made in turn within a budget, and what they show.

    costs        `single` with batches of b, b/2, b/4, ...      crowding     ranks that never talk
    trials       the rows themselves, where they have few processes

What matters most comes first, every second round goes backwards, and what would not end in time is left out.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ...errors import RankFailed
from ...record.run import PHASES, Run
from ...strategies import make_strategy
from ...strategies.contract import Strategy
from ...strategies.job import Job
from ...task import Task
from ...training.proof.tried import Tried
from ...training.settings import FitSettings
from ..contenders import Contender
from ..doctor.machine import free_memory
from ..doctor.needs import Needs
from ..slices import FEWEST, FIRST, MOST, WARM_UP, Variant, run_slice, steady_ms
from .paces import spread
from .transport import between
from .trials import key

ROUNDS = 3
SHORTEST, LONGEST = 0.25, 1.0  # seconds of a slice
UNKNOWN = 2.0  # times the step of `single`: what a step of something else is taken for, until it was seen
START_SECONDS = 1.0  # of a slice, beside its steps: a guess, until some have been made
FEW = 2  # steps of a slice where they take seconds each: then even the first is hardly longer than the others
Say = Callable[[str], None]


class Bench:
    """The slices to be made, in the order in which they matter."""

    def __init__(self, task: Task, job: Job, settings: FitSettings, say: Say, longest_step: float, needed: Needs):
        self.task, self.job, self.settings, self.say = task, job, settings, say
        self.longest_step, self.needed = longest_step, needed  # seconds
        self._tried = Tried()  # of slices with the whole batch
        self.batch = min(task.batch_size, job.order.read)  # samples of a step
        self._parts: dict[tuple[int, int], Variant] = {}  # (threads, samples)
        self._least: list[Variant] = []  # of them, those without which nothing can be said
        self._crowds: dict[int, Variant] = {}  # ranks
        self._trials: dict[tuple[str, int, int | None], Variant] = {}
        self._starts: list[float] = []  # seconds of each slice beside its steps

    @property
    def variants(self) -> list[Variant]:
        """What matters most comes first, for the budget may be too short: what the whole batch and the smallest shard cost,
        how the most ranks crowd each other, trials; then what lies between."""
        crowds = list(reversed(self._crowds.values()))
        ordered = [*self._least, *crowds[:1], *self._trials.values(), *self._parts.values(), *crowds[1:]]
        return list({id(variant): variant for variant in ordered}.values())

    def _variant(self, label: str, strategy: Strategy, threads: int | None, samples: int | None = None) -> Variant:
        task = self.task if samples is None else self.task.replace(batch_size=samples)
        # A batch is evaluated at the end of each: a rank holds what that takes, too.
        step = replace(self.settings.step, eval_every=MOST, eval_batches=1)
        if not self.job.endless:  # long enough for any slice
            per_epoch = max(1, len(self.job.train) // task.batch_size)
            step = replace(step, epochs=max(self.job.epochs, math.ceil(MOST / per_epoch)))
        tried = self._tried if samples is None else None
        return Variant(label, task, strategy, replace(self.settings, step=step, threads=threads, tried=tried))

    def add_parts(self, threads: int, most: int) -> None:
        """Halves of the batch down to the smallest shard, and at least to a quarter: pipelines cut batches as well. Where
        steps with so many samples take too long, smaller ones."""
        halvings = max(2, math.ceil(math.log2(max(most, 1))))
        sizes = list(dict.fromkeys(max(1, math.ceil(self.batch / 2**place)) for place in range(halvings + 1)))
        while sizes[-1] > 1 and len(self._quick(sizes)) < 2:
            sizes.append(math.ceil(sizes[-1] / 2))
        sizes = self._quick(sizes) or sizes[-1:]
        for samples in sizes:
            label = f"single with {samples} samples per step"
            self._parts[threads, samples] = self._variant(label, make_strategy("single"), threads, samples)
        self._least += [self._parts[threads, samples] for samples in dict.fromkeys((max(sizes), min(sizes)))]

    def _quick(self, sizes: Sequence[int]) -> list[int]:
        return [samples for samples in sizes if samples * self._sample_seconds <= self.longest_step]

    def add_crowds(self, threads: int, strategies: Sequence[Strategy], needed: Needs) -> None:
        """Where there is a sample for each rank, and memory for all of them."""
        for apart in strategies:
            if self.batch >= apart.ranks and needed.total(apart, self.batch) < free_memory():
                self._crowds[apart.ranks] = self._variant(f"{apart.ranks} ranks apart", apart, threads)

    def add_trial(self, row: Contender) -> None:
        assert row.strategy is not None
        same = self._parts.get((row.threads or 0, self.batch)) if row.single else None
        self._trials[key(row)] = same or self._variant(f"trial of {row.label}", row.strategy, row.threads)

    def run(self, until: float) -> None:
        """Every second round backwards; slices are as long as the time allows for, and those that would not end in time are
        left out."""
        for number in range(ROUNDS):
            turn = [variant for variant in self.variants if variant.problem is None]
            for place, variant in enumerate(turn if number % 2 == 0 else reversed(turn)):
                began = time.monotonic()
                variant.fewest = min(FEWEST, max(FEW, round(2 * LONGEST / max(self._step(variant), 1e-6))))
                if until - began < self._cost(variant) and (number or variant.slices or place >= len(self._least)):
                    continue
                left = (len(turn) - place) + (ROUNDS - 1 - number) * len(turn)
                seconds = min(LONGEST, max(SHORTEST, (until - began) / left - self._start))
                self.say(f"round {number + 1}: {variant.label}")
                if variant.pace is None:
                    variant.pace = self._first_guess()
                run = run_slice(variant, seconds)
                if variant.problem is not None and variant is self._least[0]:
                    raise RankFailed(f"plan measures steps of `single` first, and they failed: {variant.problem}")
                variant.slices.append(run)
                if run is not None:
                    self._starts.append(max(0.0, time.monotonic() - began - (run.seconds or 0.0)))

    @property
    def _sample_seconds(self) -> float:
        """What a sample is expected to take: as measured with the first slice, before it in a small pass."""
        first = self._least[0] if self._least else None
        if first is not None and first.pace is not None and first.slices:
            return first.pace / min(first.task.batch_size, self.batch)
        return self.needed.seconds or 0.0

    def _step(self, variant: Variant) -> float:
        """Seconds of a step, as last seen; of a row that was never made, those of `single`."""
        if variant.pace is not None and variant.slices:
            return variant.pace
        return min(variant.task.batch_size, self.batch) * self._sample_seconds

    def _first_guess(self) -> float | None:
        """Seconds per step that are rather too long than too short; None leaves it to a dozen quick steps."""
        whole = self.batch * self._sample_seconds
        if self._least[0].slices:
            return UNKNOWN * whole
        return whole if FIRST * whole > LONGEST else None

    @property
    def _start(self) -> float:
        return statistics.fmean(self._starts) if self._starts else START_SECONDS

    def _cost(self, variant: Variant) -> float:
        """Seconds that a slice takes at least."""
        return self._start + max(SHORTEST, variant.fewest * self._step(variant))

    # ------------------------------------------------------------ what came of it

    def parts(self) -> dict[int, dict[float, dict[str, float]]]:
        found: dict[int, dict[float, dict[str, float]]] = {}
        for (threads, samples), variant in self._parts.items():
            if variant.runs:
                found.setdefault(threads, {})[float(samples)] = phase_seconds(variant.runs)
        for known in found.values():
            if len(known) == 1:  # there was no time for more than one size
                size, phases = next(iter(known.items()))
                known[2 * size] = {name: 2 * value for name, value in phases.items()}
        return found

    def crowding(self, parts: Mapping[float, Mapping[str, float]]) -> dict[int, float]:
        """Work of a shard beside others against the same work alone."""
        found = {}
        for ranks, variant in self._crowds.items():
            alone = parts.get(float(math.ceil(self.batch / ranks)))
            if variant.runs and alone:
                beside = phase_seconds(variant.runs)
                found[ranks] = max(1.0, work(beside) / max(1e-9, work(alone)))
        return found

    def paces(self) -> dict[int, list[float]]:
        """How unequal ranks with equal shards are."""
        return {
            ranks: spread([[work(rank["phases_ms"]) for rank in run.per_rank] for run in variant.runs])
            for ranks, variant in self._crowds.items()
            if variant.runs and self.batch % ranks == 0
        }

    def trials(self) -> dict[tuple[str, int, int | None], list[Run]]:
        return {row: variant.runs for row, variant in self._trials.items() if variant.runs}

    def refusals(self) -> dict[tuple[str, int, int | None], str]:
        return {row: variant.problem for row, variant in self._trials.items() if variant.problem is not None}

    def skipped(self) -> list[str]:
        return [variant.label for variant in self.variants if not variant.slices]

    def enough_seconds(self, prepared: float) -> float | None:
        """For a slice of everything, after so many seconds of preparation; None where there was one."""
        return prepared + sum(map(self._cost, self.variants)) if self.skipped() else None

    def memory(self, threads: int) -> dict[float, float]:
        """What a rank with such a shard holds, by what `single` held at most."""
        found = {}
        for (count, samples), variant in self._parts.items():
            peaks = [peak for run in variant.runs if (peak := memory_of(run)) is not None]
            if count == threads and peaks:
                found[float(samples)] = max(peaks)
        if found and (most := max(found)) < self.batch:  # there was no time for the whole batch
            # What is kept for backward is not all: operations use memory of their own meanwhile.
            kept = (self.batch - most) * (self.needed.sample + self.needed.batch)
            found[float(self.batch)] = max(found[most] + kept, between(found, self.batch))
        return found

    def alone(self) -> list[Run]:
        return self._least[0].runs

    def luck(self) -> list[float]:
        """How long steady steps of lone ranks were, each over the mean of its slice."""
        found: list[float] = []
        for run in (run for variant in self._parts.values() for run in variant.runs):
            steps = run.durations_ms[math.floor(len(run.durations_ms) * WARM_UP) :]
            found += [step / statistics.fmean(steps) for step in steps]
        return found

    def startup_seconds(self) -> float:
        """Of a fit by itself: slices try their task out once."""
        runs = [run for variant in self.variants for run in variant.runs if run.startup_seconds and run.timings]
        others = [run.startup_seconds - run.timings["checks"] for run in runs]  # type: ignore[operator, index]
        return statistics.median(others) + self._tried.seconds if others else 0.0

    def prepare_seconds(self) -> dict[str, float]:
        """What strategies take beside that, by name: pipelines cut the model."""
        return dict(self._tried.prepare_seconds)


def phase_seconds(runs: Sequence[Run]) -> dict[str, float]:
    """Of the slice with the median step, without its first steps."""
    middle = sorted(runs, key=steady_ms)[(len(runs) - 1) // 2]
    phases = {name: (middle.phases_ms or {}).get(name) or 0.0 for name in PHASES}
    whole = sum(phases.values())
    scale = steady_ms(middle) / whole / 1000 if whole else 0.0
    return {name: value * scale for name, value in phases.items()}


def work(phases: Mapping[str, float]) -> float:
    """Of a step, what does not wait or talk."""
    return sum(phases[name] for name in ("load", "transfer", "augment", "forward", "backward", "update", "other"))


def idle_load(runs: Sequence[Run]) -> float:
    """The share of `load` that took no core."""
    shares = []
    for run in runs:
        rank = run.per_rank[0] if run.per_rank else {}
        seconds, used = (rank.get(name) or {} for name in ("phases_ms", "cpu_ms"))
        if seconds.get("load") and used.get("load") is not None:
            shares.append(max(0.0, 1 - used["load"] / seconds["load"]))
    return statistics.median(shares) if shares else 0.0


def memory_of(run: Run) -> float | None:
    """Of the rank that held most."""
    found = [rank.get("peak_memory_bytes") for rank in run.per_rank]
    return max((value for value in found if value is not None), default=None)
