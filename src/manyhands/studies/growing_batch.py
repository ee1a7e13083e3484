"""Weak scaling: every row of a comparison gets a batch that grows with its ranks, and says what became of the rate."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache

import torch
from torch import nn

from ..record.run import Run
from ..task import Task
from ..training.proof.tried import Tried
from .contenders import Contender

Recipe = Callable[[int], Task]  # the task for a batch size


def give_tasks(task: Task, rows: Iterable[Contender], scale_batch: bool | Recipe) -> None:
    """Every row its task: the same one, or one whose batch is the task's times the ranks of the row."""
    tried: dict[int, Tried] = {}
    made = cache(scale_batch) if callable(scale_batch) else lambda batch: task
    for row in rows:
        row.task = task
        if scale_batch:
            batch = task.batch_size * row.ranks
            row.task = made(batch).replace(batch_size=batch)
            row.batch_per_rank = task.batch_size
            if row.ranks > 1:
                row.notes.append(
                    f"batch of {batch}: {task.batch_size} for each of {row.ranks} ranks; {_rate(task, row.task)}"
                )
        row.tried = tried.setdefault(row.task.batch_size, Tried())


def too_few_samples(run: Run) -> list[str]:
    """A batch cannot grow beyond the data: then the ranks of a row share fewer samples than its batch size says."""
    found = run.epochs[0].get("samples") if run.epochs else None
    if not found or run.batch_size is None or found >= run.batch_size:
        return []
    return [
        f"the training data has {found} samples, fewer than a batch of {run.batch_size}: each of {run.ranks} ranks had "
        f"about {found / run.ranks:.3g} of them, so this row does not show how a growing batch scales"
    ]


def _rate(task: Task, grown: Task) -> str:
    before, after = _learning_rate(task), _learning_rate(grown)
    if before is None or after is None:
        return "the learning rate is what the task gives for that batch"
    if before == after:
        return f"the learning rate stays at {after:g}, as for a batch of {task.batch_size}"
    return f"the task's recipe makes the learning rate {after:g} instead of {before:g}"


def _learning_rate(task: Task) -> float | None:
    """At the start of a fit, before any schedule; found on a stand-in for the parameters."""
    with suppress(Exception):  # an optimizer that wants the real ones
        groups = task.optimizer([("weight", nn.Parameter(torch.zeros(1, 1)))]).param_groups
        return max(float(group["lr"]) for group in groups)
    return None
