"""The whole job on the clock on the wall: what passes beside its steps.

    start            until the first step       (how much of it is the task's own: a trivial task starts beside it)
    evaluation       after epochs               checkpoint   while they are copied and written
    pause            between epochs, until all ranks read again

A stretch of the job is run as it is, with its test set and its checkpoints; what each part costs there is scaled to
the length of the job.
"""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from ...record.run import Run
from ...strategies.contract import Strategy
from ...task import Task
from ...training.checkpoints.interval import Interval
from ...training.run_fit import run_fit
from ...training.settings import FitSettings
from ..slices import steady_ms
from .job import Diagnosed

STRETCH_SECONDS = 4.0
HARDLY = 0.3  # of the job's time in steps, below which nothing about them can matter
SECONDS_TO_LOOK = 2.0  # a start below is nobody's trouble


@dataclass(frozen=True)
class Parts:
    """Seconds of a whole job, in its parts."""

    start: float
    own_start: float  # what the task itself makes the start longer by
    steps: float
    evaluation: float
    checkpoint: float
    pause: float

    @property
    def total(self) -> float:
        return self.start + self.steps + self.evaluation + self.checkpoint + self.pause

    @property
    def own(self) -> float:
        """Without the start that any job of this kind has: a job that is tried out is short."""
        return self.total - self.start + self.own_start


def run_stretch(job: Diagnosed, pace: float | None = None) -> Run:
    """The job as it is, or its beginning where it is long; twice epochs where those are short, to see a pause between."""
    steps = 12 if pace is None else max(12, round(STRETCH_SECONDS / max(pace, 1e-6)))
    with tempfile.TemporaryDirectory(prefix="manyhands-") as folder:
        keeps = job.settings.every is not None
        step = replace(job.settings.step, max_steps=min(steps, job.steps))
        settings = replace(job.settings, step=step, run_dir=folder if keeps else None, resume=False, progress=False)
        return run_fit(job.task, job.strategy, settings)


def starts_slowly(job: Diagnosed, stretch: Run, step_ms: float) -> bool:
    return (stretch.startup_seconds or 0.0) > max(SECONDS_TO_LOOK, 0.2 * job.steps * step_ms / 1000)


def parts_of(job: Diagnosed, stretch: Run, step_ms: float, floor: float | None) -> Parts:
    """The whole job's parts from a stretch of it and the time of a step as slices show it.

    `floor` is how long a job of nothing takes to start, where this one takes long.
    """
    made = max(1, stretch.steps)
    epochs = len(stretch.epochs)
    evaluations = sum("test_loss" in entry for entry in stretch.epochs) or 1
    needed = math.ceil(job.epochs / job.settings.step.eval_every)
    pauses = max(1, epochs - 1)
    start = stretch.startup_seconds or 0.0
    return Parts(
        start=start,
        own_start=0.0 if floor is None else max(0.0, start - floor),
        steps=job.steps * step_ms / 1000,
        evaluation=needed * (stretch.evaluation_seconds or 0.0) / evaluations,
        checkpoint=_checkpoints(job, stretch, made, step_ms),
        pause=(job.epochs - 1) * (stretch.pause_seconds or 0.0) / pauses,
    )


def _checkpoints(job: Diagnosed, stretch: Run, made: int, step_ms: float) -> float:
    """Seconds the whole job spends on them; writing beside the steps slows these, so both are compared with bare steps."""
    every = job.settings.every
    if every is None:
        return 0.0
    with_them = (stretch.checkpoint_seconds or 0.0) + made * steady_ms(stretch) / 1000
    extra = max(0.0, with_them - made * step_ms / 1000)
    return (
        extra / made * job.steps if _counts_steps(every) else extra / max(1e-9, with_them) * job.steps * step_ms / 1000
    )


def _counts_steps(every: Interval) -> bool:
    return every.steps is not None


def trivial_start(strategy: Strategy, settings: FitSettings) -> float:
    """How long the same strategy takes to start with a task that has nothing to start."""
    size = 8 * strategy.ranks
    data = torch.zeros(2 * size, 4), torch.zeros(2 * size, dtype=torch.int64)
    layers = [layer for _ in range(strategy.ranks) for layer in (nn.Linear(4, 4), nn.ReLU())]
    trivial = Task(
        model=nn.Sequential(*layers),
        train=data,
        loss=nn.functional.cross_entropy,
        optimizer=partial(torch.optim.SGD, lr=0.0),
        batch_size=size,
    )
    plain = FitSettings(device=settings.device, threads=settings.threads, progress=False, on=settings.on)
    run = run_fit(trivial, strategy, plain)
    return run.startup_seconds or 0.0
