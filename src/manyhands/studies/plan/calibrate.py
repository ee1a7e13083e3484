"""Calibration: what is measured of a task on this machine before anything is forecast, within a budget of seconds.

    costs        short slices of `single` with batches of b, b/2, b/4, ... : what a step costs on a rank with such a shard
    crowding     k ranks that never talk, each with a shard: how work slows down where k of them share memory and caches,
                 and how unequal they are
    transport    collectives and messages between processes of this host, by size
    trials       short slices of the rows themselves, where they have few processes

Crowding and transport are measured with 2, 4, 8 ... processes up to the cores: what is shared has its limits, which fewer
processes do not show. Messages are measured between four even on fewer cores, where processes wait for a core as well.
All slices are made in turn (bench.py), round after round, so that a machine that slows down slows all alike.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import torch

from ...record.cores import available_cores
from ...record.neighbours import Neighbours
from ...record.run import Run
from ...strategies import make_strategy
from ...strategies.job import Job
from ...task import Task
from ...training.build import build, check_length
from ...training.proof.probe import probe
from ...training.settings import FitSettings
from ...world.launch.fork_server import warm_up
from ..contenders import Contender, modules_of
from ..doctor.machine import free_memory
from ..doctor.needs import Needs, needs
from .bench import FEW, Bench, Say, idle_load
from .transport import Kinds, Transport, copy_seconds_per_byte, measure
from .trials import MOST_TRIED, rows_tried, size

FOR_PART = 0.15  # of the budget: a size of batch that takes longer is carried on from smaller ones
FOR_SLICES = 0.85  # of the budget: what comes before and after them takes time, too
APART = f"local_sgd:period={10**6}"  # ranks that train side by side and never talk


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
    prepare_seconds: dict[str, float] = field(default_factory=dict)  # of strategies that prepare something, beside that
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
    bench = Bench(task, job, settings, say, FOR_PART * budget / FEW, needed)
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
    parts, enough = bench.parts(), bench.enough_seconds(prepared)
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
        prepare_seconds=bench.prepare_seconds(),
        alone=bench.alone(),
        idle_load=idle_load(bench.alone()) if not settings.step.loader_workers else 0.0,  # they use cores
        luck=bench.luck(),
        paces=bench.paces(),
        others_cores=neighbours.cores_taken(),
        seconds=time.monotonic() - began,
        skipped=bench.skipped(),
        enough_seconds=None if enough is None else enough / FOR_SLICES,
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
