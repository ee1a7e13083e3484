"""Parameter server: what one slow worker does to the others when updates are synchronous, bounded or asynchronous.

    all alike    nobody is slow
    one slow     one worker takes some milliseconds more for every gradient
    one pauses   the same worker takes ten times as long for every tenth gradient: as slow on average, now and then

The delay is a sleep in the worker's forward pass, so it is part of its time, and a share of the data that others make
in its place costs it nothing. Batches, rates and the order of the data are the same in all rows. The time to an
accuracy is time in training steps; accuracies between two evaluations lie on a straight line.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

from torch import Tensor, nn

from ....record.run import Run
from ....task import Task
from ....tasks.glyphs import make as glyphs
from ....tasks.models import lenet
from ..experiment import Column, Curve, Experiment, Line, Part, Scale
from ..table import Table
from .parameter_server_verdict import MODES, SITUATIONS, TARGET, judge

BOUND = 4  # steps that a worker may be ahead of the slowest
STRATEGIES = {"sync": "mode=sync", "bounded": f"mode=bounded,staleness={BOUND}", "async": "mode=async"}
DELAY_SECONDS = 0.02  # per gradient of the slow worker
EVERY = {"all alike": 0, "one slow": 1, "one pauses": 10}  # gradients from one delay to the next; 0: none


class Delayed(nn.Module):
    """LeNet; rank `slow` sleeps in every so many training passes, as long as for a delay in each."""

    def __init__(self, slow: int, every: int):
        super().__init__()
        self.net = lenet(mean=0.17, std=0.25)
        self.slow, self.every, self.passes = slow, every, 0

    def forward(self, images: Tensor) -> Tensor:
        if self.training and self.every and os.environ.get("RANK") == str(self.slow):
            self.passes += 1
            if not self.passes % self.every:
                time.sleep(DELAY_SECONDS * self.every)
        found: Tensor = self.net(images)
        return found


def task(train: int, slow: int, every: int) -> Task:
    digits = glyphs(train=train, test=1000)
    return digits.replace(model=partial(Delayed, slow, every), eval_batch_size=500, name="glyphs")


def parts(scale: Scale) -> Sequence[Part]:
    ranks, servers, batch = (8, 2, 128) if scale.cores >= 12 else (2, 1, 64)
    steps, epochs = (40, 6) if scale.quick else (50, 8)  # short epochs: the test set is evaluated after each
    found = []
    for situation in SITUATIONS:
        every = EVERY[situation]
        found += [
            Part(
                f"{mode}, {situation}", partial(task, steps * batch, ranks - 1, every),
                f"parameter_server:servers={servers},{STRATEGIES[mode]}", batch_size=batch,
                fit={"ranks": ranks, "threads": 1, "epochs": epochs}, cost=2 if every and mode != "async" else 1,
            )
            for mode in MODES
        ]  # fmt: skip
    return found


# ---- what is read from the runs ------------------------------------------------------------------------------------


def progress(run: Run) -> list[tuple[float, float]]:
    """Seconds of training so far and the test accuracy, after every epoch."""
    seconds, found = 0.0, []
    for entry in run.epochs:
        seconds += entry["seconds"]
        if entry.get("test_accuracy") is not None:
            found.append((seconds, entry["test_accuracy"]))
    return found


def seconds_to_target(run: Run, others: Mapping[str, Run]) -> float | None:
    """When the test accuracy first reaches the target; None where it never does."""
    for (before, low), (after, high) in pairwise([(0.0, 0.0), *progress(run)]):
        if high >= TARGET:
            return before + (after - before) * (TARGET - low) / (high - low)
    return None


def waiting(run: Run, others: Mapping[str, Run]) -> float | None:
    """The part of their time that ranks wait for each other."""
    phases: Mapping[str, Any] = run.phases_ms or {}
    total = sum(value for value in phases.values() if value)
    return phases["wait"] / total if total else None


def accuracy_lines(situation: str, table: Table) -> list[Line]:
    """Accuracy over seconds of training, after every epoch: the medians over seeds, and both ends."""
    lines = []
    for row in table:
        if row.label.endswith(f", {situation}"):
            points = []
            for reached in zip(*map(progress, row.runs), strict=False):
                values = [100 * accuracy for _, accuracy in reached]
                points.append((median(seconds for seconds, _ in reached), median(values), min(values), max(values)))
            lines.append(Line(row.label.partition(",")[0], points))
    return lines


EXPERIMENT = Experiment(
    name="parameter-server",
    title="One slow worker",
    claim=(
        "a slow worker holds everyone up where updates are synchronous; asynchronous ones go on without waiting, at the "
        "price of stale gradients, and bounded staleness lies between."
    ),
    source="Li et al. 2014 and Ho et al. 2013, parameter servers on clusters; here LeNet on drawn digits, "
    "workers and servers as processes on the CPU cores of one machine, and a worker that sleeps",
    parts=parts,
    columns=(
        Column("target", f"s to {TARGET:.0%}", seconds_to_target),
        Column("speed", "samples/s", lambda run, others: run.samples_per_second, ",.0f"),
        Column("waiting", "waiting", waiting, ".0%"),
        Column("staleness", "stale by", lambda run, others: (run.staleness or {}).get("mean"), ".1f"),
        Column("accuracy", "accuracy", lambda run, others: (run.test or {}).get("accuracy"), ".1%"),
    ),
    judge=judge,
    curves=tuple(
        Curve(
            f"Test accuracy, {situation}", "seconds of training", "test accuracy, %", partial(accuracy_lines, situation)
        )
        for situation in SITUATIONS
    ),
    quick_seeds=3,
    quick_note="6 epochs of 40 steps instead of 8 of 50",
    takes=("2 min", "3 min on 16 cores"),
    device="cpu",
)
