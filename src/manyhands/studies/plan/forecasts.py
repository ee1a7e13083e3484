"""From a calibration to a forecast: what was tried is reported as it was, everything else is simulated.

A simulation knows nothing of what it was not told (how a lock feels the cache of another core, what torch's wrappers
cost), so it is corrected by what it got wrong where the same strategy was tried, with the nearest number of ranks: what took
a quarter longer there takes a quarter longer here.
"""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from ...errors import BadInput, Refused
from ...record.forecast import Forecast
from ...record.run import Run
from ...strategies.contract import Strategy, admit, processes
from ...strategies.job import trained_parameters
from ..contenders import Contender
from ..slices import WARM_UP, steady_ms
from .bench import memory_of, phase_seconds
from .calibrate import Calibration
from .costs import MeasuredCosts, stages_of, units_of
from .events import Outcome, run
from .link import Link
from .luck import drawn
from .paces import dealt
from .transport import between
from .trials import key

TRIED, SIMULATED = "measured", "simulated"
# Half the width of an 80 % interval, relative: what repeated comparisons were off by at least (docs/plan.md), and what a
# simulated row adds for every doubling of ranks beyond what was tried.
FLOOR, UNTRIED, PER_DOUBLING = 0.05, 0.40, 0.10
STEPS, WARM = 24, 8  # that are simulated, and those of them that do not count: local_sgd averages in every eighth
T80 = {1: 3.08, 2: 1.89, 3: 1.64, 4: 1.53}  # of Student's distribution, by degrees of freedom


@dataclass(frozen=True)
class Place:
    """Where the ranks would be: hosts like this one, and what connects them."""

    hosts: int = 1
    link: Link | None = None
    cores: int | None = None  # of each host; None: as many as here
    memory: float | None = None  # bytes that a rank may take


@dataclass(frozen=True)
class Simulated:
    outcome: Outcome
    costs: MeasuredCosts


class Forecaster:
    """Forecasts rows from one calibration; what is worked out for a row is kept for the rows that follow from it."""

    def __init__(self, found: Calibration, rows: Sequence[Contender], place: Place):
        self.found, self.rows, self.place = found, rows, place
        self._prepared: dict[tuple[str, int], Any] = {}
        self._local: dict[tuple[str, int, int | None], Simulated] = {}

    def forecast(self, row: Contender) -> Forecast:
        try:
            return self._forecast(row)
        except (Refused, BadInput) as problem:
            return self._infeasible(row, str(problem).splitlines()[0])

    def _infeasible(self, row: Contender, reason: str) -> Forecast:
        return Forecast(
            row.name, row.ranks, False, reason, threads=row.threads, batch_size=self.found.job.task.batch_size
        )

    def _forecast(self, row: Contender) -> Forecast:
        if row.strategy is None or row.refusal:
            return self._infeasible(row, row.refusal or "it cannot be made")
        if (refused := self.found.refusals.get(key(row))) is not None:
            return self._infeasible(row, refused)
        hosts = min(self.place.hosts, row.ranks)
        if hosts > 1 and not row.strategy.traits.hosts:
            raise Refused(f"{row.name} shares memory and cannot run over several hosts (hosts: {hosts}); use ddp")
        tried = self.found.trials.get(key(row)) if hosts == 1 and self.place.cores is None else None
        batch = self.found.samples_per_step
        if tried:  # and nothing need be prepared: cutting a large model takes as long as several trials
            speeds = [self._speed(one) for one in tried]
            speed, half, basis = statistics.median(speeds), _half(speeds), TRIED
            counted = tried[0].communication_bytes
            phases, handed_over = phase_seconds(tried), {} if counted is None else {"memory": counted}
        else:
            simulated = self._simulate(row, self._prepare(row.strategy), hosts)
            (times, doublings), basis = self._correction(row), SIMULATED
            here = self._simulate_here(row) if hosts > 1 else simulated
            beyond = max(
                0.0, simulated.outcome.step_seconds - here.outcome.step_seconds
            )  # what the link adds is no guess
            speed = batch / ((times or 1.0) * self._step_seconds(here) + beyond)
            half = (FLOOR if times else UNTRIED) + PER_DOUBLING * doublings
            phases = simulated.outcome.mean(row.ranks)
            handed_over = {link: size / STEPS for link, size in simulated.costs.handed_over.items() if size}
        memory = self._memory(row, tried)
        if self.place.memory is not None and memory is not None and memory > self.place.memory:
            needs, has = memory / 2**20, self.place.memory / 2**20
            return replace(
                self._infeasible(row, f"a rank needs {needs:,.0f} MiB and may take {has:,.0f} MiB"),
                memory_bytes=int(memory),
            )
        return Forecast(
            strategy=row.name,
            ranks=row.ranks,
            samples_per_second=speed,
            interval=(speed * (1 - half), speed * (1 + half)),
            step_ms=1000 * batch / speed,
            phases_ms=_filling(phases, 1000 * batch / speed),
            memory_bytes=None if memory is None else int(memory),
            bytes_per_step=handed_over,
            threads=row.threads,
            hosts=hosts,
            batch_size=self.found.job.task.batch_size,
            basis=basis,
        )

    # ------------------------------------------------------------ feasible at all

    def _prepare(self, strategy: Strategy) -> Any:
        """What the strategy would refuse it refuses here; where it cuts the model, and what it found."""
        place = (str(strategy), strategy.ranks)
        if place not in self._prepared:
            job = self.found.job
            admit(strategy, job, [torch.device("cpu")] * strategy.ranks)
            began = time.monotonic()
            self._prepared[place] = strategy.prepare(copy.copy(job))
            self.found.prepare_seconds.setdefault(strategy.name, time.monotonic() - began)  # where it was not tried
        return self._prepared[place]

    # ------------------------------------------------------------ speed

    def _speed(self, tried: Run) -> float:
        """Of the whole job."""
        return 1000 * self.found.samples_per_step / (steady_ms(tried) + self._lost_ms(tried))

    def _lost_ms(self, tried: Run) -> float:
        """Per step of the whole job, to its first steps, which are as slow as in the trial: caches fill, memory is taken."""
        steps, steady = self.found.job.total_steps, steady_ms(tried)
        first = tried.durations_ms[: math.floor(len(tried.durations_ms) * WARM_UP)][:steps]
        return max(0.0, sum(first) - len(first) * steady) / steps

    def _step_seconds(self, simulated: Simulated) -> float:
        """Of a step of the whole job, which loses to its first steps what `single` does."""
        lost = [self._lost_ms(one) for one in self.found.alone]
        return simulated.outcome.step_seconds + (statistics.median(lost) / 1000 if lost else 0.0)

    def _simulate(self, row: Contender, prepared: Any, hosts: int) -> Simulated:
        assert row.strategy is not None
        strategy, job = row.strategy, self.found.job
        count = max(processes(strategy), strategy.ranks)
        where = [process * hosts // count for process in range(count)]
        threads = row.threads if row.threads in self.found.parts else min(self.found.parts)
        costs = MeasuredCosts(
            batch_size=min(job.task.batch_size, job.order.read),
            trained_bytes=sum(parameter.nbytes for _, parameter in trained_parameters(job.model)),
            weight_bytes=self.found.needs.weights,
            parts=self.found.parts[threads],
            transport=self.found.transport,
            copy_per_byte=self.found.copy_per_byte,
            idle_load=self.found.idle_load,
            stages=stages_of(prepared),
            units=units_of(prepared),
            hosts=where,
            link=self.place.link,
        )
        timeline = strategy.traits.timeline
        assert timeline is not None, f"{strategy.name} tells no timeline"
        cores = (self.place.cores or self.found.cores) / threads
        luck, paces = drawn(self.found.luck, STEPS - WARM), dealt(self.found.paces, count)
        if strategy.traits.helps:  # who is done early takes over shares of the slow
            paces = [1.0] * count

        def times(process: int, step: int) -> float:
            return luck(process, step) * paces[process]

        slowdown, wake = self.found.slowdown, self.found.transport.wake
        outcome = run(partial(timeline, costs), where, max(1.0, cores), slowdown, STEPS, WARM, times, wake)
        return Simulated(outcome, costs)

    def _nearest_tried(self, row: Contender) -> list[Contender]:
        """Where the same strategy was tried, the nearest number of ranks first. One thread says nothing of two."""
        same = [
            other
            for other in self.rows
            if (other.asked, other.threads) == (row.asked, row.threads) and self.found.trials.get(key(other))
        ]
        return sorted(same, key=lambda other: (_doublings(other, row), -other.ranks))

    def _correction(self, row: Contender) -> tuple[float | None, float]:
        """How many times as long as simulated the same strategy took where it was tried (None: it was not), and how many
        times that number of ranks is doubled to come to this row."""
        near = next(iter(self._nearest_tried(row)), None)
        if near is None:
            return None, max(0.0, math.log2(row.ranks))
        return self._times_simulated(near), _doublings(near, row) + (self.place.hosts > 1)

    def _times_simulated(self, row: Contender) -> float:
        """How many times as long as simulated a step took where this row was tried."""
        if key(row) not in self._local:
            self._local[key(row)] = self._simulate_here(row)
        speed = statistics.median(self._speed(one) for one in self.found.trials[key(row)])
        return self.found.samples_per_step / speed / self._step_seconds(self._local[key(row)])

    def _simulate_here(self, row: Contender) -> Simulated:
        """As it was tried: on this host."""
        assert row.strategy is not None
        here = Forecaster(self.found, self.rows, Place())
        return here._simulate(row, self._prepare(row.strategy), 1)

    # ------------------------------------------------------------ memory

    def _memory(self, row: Contender, tried: Sequence[Run] | None) -> float | None:
        """Of the rank that needs most: as tried, or as reckoned, with what was missing where the same strategy was tried."""
        if (peak := _peak(tried or ())) is not None or not self.found.memory:
            return peak
        beside = 0.0
        for other in self._nearest_tried(row)[:1]:
            known = _peak(self.found.trials[key(other)])
            beside = 0.0 if known is None else known - self._reckoned_memory(other)
        return self._reckoned_memory(row) + beside

    def _reckoned_memory(self, row: Contender) -> float:
        """What `single` holds with such a shard, with this rank's parts of the model instead of its own."""
        assert row.strategy is not None
        strategy, needs = row.strategy, self.found.needs
        held = processes(strategy)
        weights, gradients, optimizer = strategy.traits.copies or (strategy.ranks, strategy.ranks, held)
        model = (weights * needs.weights + gradients * needs.gradients + optimizer * needs.optimizer) / held
        alone = needs.weights + needs.gradients + needs.optimizer
        return between(self.found.memory, self.found.samples_per_step / held) - alone + model


def _doublings(one: Contender, other: Contender) -> float:
    return abs(math.log2(one.ranks / other.ranks))


def _peak(runs: Sequence[Run]) -> float | None:
    return max((peak for run in runs if (peak := memory_of(run)) is not None), default=None)


def _filling(phases: Mapping[str, float], whole: float) -> dict[str, float]:
    """The same shares of another whole."""
    scale = whole / (sum(phases.values()) or 1.0)
    return {name: value * scale for name, value in phases.items()}


def _half(speeds: Sequence[float]) -> float:
    """Half of an 80 % interval for the next measurement, relative: from the spread of these, and never below the floor."""
    if len(speeds) < 2:
        return 2 * FLOOR
    logs = [math.log(speed) for speed in speeds]
    spread = statistics.stdev(logs) * math.sqrt(1 + 1 / len(logs))
    return max(FLOOR, min(0.5, T80.get(len(logs) - 1, 1.4) * spread))
