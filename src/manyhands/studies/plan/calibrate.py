"""Calibration: what is measured of a task on this machine before anything is forecast, within a budget of seconds.

    costs        short slices of `single` with batches of b, b/2, b/4, ... : what a step costs on a rank with such a shard
    crowding     k ranks that never talk, each with a shard: how work slows down where k of them share memory and caches,
                 and how unequal they are
    transport    collectives and messages between processes of this host, by size
    trials       short slices of the rows themselves, where they have few processes

Crowding and transport are measured with 2, 4, 8 ... processes up to the cores: what is shared has its limits, which fewer
processes do not show. Messages are measured between four even on fewer cores, where processes wait for a core as well.
All slices are made in turn, round after round, so that a machine that slows down slows all alike.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import torch

from ...errors import RankFailed
from ...record.cores import available_cores
from ...record.neighbours import Neighbours
from ...record.run import PHASES, Run
from ...strategies import make_strategy
from ...strategies.contract import Strategy
from ...strategies.job import Job
from ...task import Task
from ...training.build import build, check_length
from ...training.proof.probe import probe
from ...training.settings import FitSettings
from ...world.launch.fork_server import warm_up
from ..contenders import Contender, modules_of
from ..doctor.machine import free_memory
from ..doctor.needs import Needs, needs
from ..slices import FEWEST, FIRST, MOST, WARM_UP, Variant, run_slice, steady_ms
from .paces import spread
from .transport import Kinds, Transport, copy_seconds_per_byte, measure
from .trials import MOST_TRIED, rows_tried, size

ROUNDS = 3
SHORTEST, LONGEST = 0.25, 1.0  # seconds of a slice
UNKNOWN = 2.0  # times the step of `single`: what a step of something else is taken for, until it was seen
START_SECONDS = 1.0  # of a slice, beside its steps: a guess, until some have been made
FEW = 2  # steps of a slice where they take seconds each: then even the first is hardly longer than the others
FOR_PART = 0.15  # of the budget: a size of batch that takes longer is carried on from smaller ones
FOR_SLICES = 0.85  # of the budget: what comes before and after them takes time, too
APART = f"local_sgd:period={10**6}"  # ranks that train side by side and never talk
Say = Callable[[str], None]


@dataclass
class Calibration:
    """What was measured; `job` is the task as a fit would train it."""

    job: Job
    needs: Needs
    cores: int
    parts: dict[int, dict[float, dict[str, float]]]  # threads -> samples -> seconds of each phase
    crowding: dict[int, float]  # ranks at work -> how many times slower each of them is
    transport: Transport
    copy_per_byte: float
    trials: dict[tuple[str, int, int | None], list[Run]]  # (strategy, ranks, threads) -> its slices
    refusals: dict[tuple[str, int, int | None], str]
    memory: dict[float, float]  # samples per step -> the most bytes that `single` held
    startup_seconds: float
    alone: Sequence[Run] = ()  # slices of `single` with the whole batch
    idle_load: float = 0.0  # share of `load` in which a rank only waits, for a disk or a network
    luck: Sequence[float] = ()  # steps of a lone rank over their mean
    paces: Mapping[int, Sequence[float]] = field(default_factory=dict)  # ranks at work -> work of each over their mean
    others_cores: float | None = None  # that other processes used meanwhile
    seconds: float = 0.0  # that all of this took
    skipped: list[str] = field(default_factory=list)  # what the budget was too short for,
    enough_seconds: float | None = None  # and the budget that would have been long enough

    @property
    def samples_per_step(self) -> float:
        """The mean: the last step of an epoch may be short, and one step may take all of the data."""
        order, steps = self.job.order, self.job.total_steps
        epochs, rest = divmod(steps, order.steps_per_epoch)
        return (epochs * order.read + min(rest * order.batch_size, order.read)) / steps

    def slowdown(self, busy: int) -> float:
        """Of each of so many ranks at work: measured, or as the measured ones grow."""
        known = {1: 1.0, **self.crowding}
        counts = sorted(known)
        if busy in known or len(counts) == 1:
            return known.get(busy, 1.0)
        right = next((place for place, count in enumerate(counts) if count > busy), len(counts) - 1)
        left, other = counts[right - 1], counts[right]
        return max(1.0, known[left] + (known[other] - known[left]) * (busy - left) / (other - left))


def key(row: Contender) -> tuple[str, int, int | None]:
    return row.name, row.ranks, row.threads


def calibrate(
    task: Task, rows: Sequence[Contender], settings: FitSettings, budget: float, say: Say, tried: bool = True
) -> Calibration:
    """Measure for about `budget` seconds; `tried` False leaves out the trials of whole rows."""
    began = time.monotonic()
    warm_up(modules_of(rows, settings))  # a rank's memory is that of a program that runs these rows, tried or not
    job = build(task, settings.step)
    check_length(job)
    probe(job, [torch.device("cpu")])
    needed = needs(job, free_memory())
    bench = _Bench(task, job, settings, say, FOR_PART * budget / FEW, needed)
    threads = sorted({row.threads for row in rows if row.threads and not row.single} or {1})
    most = max((size(row.strategy) for row in rows if row.strategy is not None), default=1)
    for count in threads:
        bench.add_parts(count, most)
    crowds = _doublings(min(available_cores() // threads[0], most))
    bench.add_crowds(threads[0], [make_strategy(APART, ranks) for ranks in crowds], needed)
    for row in rows_tried(rows) if tried else ():
        bench.add_trial(row)
    bench.say("measuring messages between processes")
    transport = _transport(_doublings(min(max(MOST_TRIED, available_cores()), most)))
    neighbours = Neighbours()
    neighbours.begin()
    prepared = time.monotonic() - began
    bench.run(began + FOR_SLICES * budget)
    parts = bench.parts()
    return Calibration(
        job=job,
        needs=needed,
        cores=available_cores(),
        parts=parts,
        crowding=bench.crowding(parts[threads[0]]),
        transport=transport,
        copy_per_byte=copy_seconds_per_byte(),
        trials=bench.trials(),
        refusals=bench.refusals(),
        memory=bench.memory(threads[0]),
        startup_seconds=bench.startup_seconds(),
        alone=bench.alone(),
        idle_load=idle_load(bench.alone()) if not settings.step.loader_workers else 0.0,  # they use cores
        luck=bench.luck(),
        paces=bench.paces(),
        others_cores=neighbours.cores_taken(),
        seconds=time.monotonic() - began,
        skipped=bench.skipped(),
        enough_seconds=bench.enough_seconds(prepared),
    )


def _doublings(most: int) -> list[int]:
    """2, 4, 8, ... up to so many."""
    return [2**power for power in range(1, most.bit_length())]


def _transport(counts: Sequence[int]) -> Transport:
    tried: dict[int, Kinds] = {}
    for count in counts:
        with suppress(Exception):  # a system without shared memory: trials tell what it costs
            tried[count] = measure(count)
    return Transport(tried)


class _Bench:
    """The slices to be made, in the order in which they matter."""

    def __init__(self, task: Task, job: Job, settings: FitSettings, say: Say, longest_step: float, needed: Needs):
        self.task, self.job, self.settings, self.say = task, job, settings, say
        self.longest_step, self.needed = longest_step, needed  # seconds
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
        return Variant(label, task, strategy, replace(self.settings, step=step, threads=threads))

    def add_parts(self, threads: int, most: int) -> None:
        """Halves of the batch down to the smallest shard, and at least to a quarter: pipelines cut batches as well. Where
        steps with so many samples take too long, smaller ones."""
        halvings = max(2, math.ceil(math.log2(max(most, 1))))
        sizes = list(dict.fromkeys(max(1, math.ceil(self.batch / 2**place)) for place in range(halvings + 1)))
        while sizes[-1] > 1 and sizes[-2:][0] * self._sample_seconds > self.longest_step:
            sizes.append(math.ceil(sizes[-1] / 2))
        sizes = [size for size in sizes if size * self._sample_seconds <= self.longest_step] or sizes[-1:]
        for samples in sizes:
            label = f"single with {samples} samples per step"
            self._parts[threads, samples] = self._variant(label, make_strategy("single"), threads, samples)
        self._least += [self._parts[threads, samples] for samples in dict.fromkeys((max(sizes), min(sizes)))]

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
        """The budget for a slice of everything, after so many seconds of preparation; None where this one was enough."""
        if not self.skipped():
            return None
        return (prepared + sum(map(self._cost, self.variants))) / FOR_SLICES

    def memory(self, threads: int) -> dict[float, float]:
        """What a rank with such a shard holds, by what `single` held at most."""
        found = {}
        for (count, samples), variant in self._parts.items():
            peaks = [peak for run in variant.runs if (peak := memory_of(run)) is not None]
            if count == threads and peaks:
                found[float(samples)] = max(peaks)
        if found and (most := max(found)) < self.batch:  # there was no time for the whole batch
            found[float(self.batch)] = found[most] + (self.batch - most) * (self.needed.sample + self.needed.batch)
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
        found = [run.startup_seconds for variant in self.variants for run in variant.runs if run.startup_seconds]
        return statistics.median(found) if found else 0.0


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
