"""The task of a part: read or made, with its batch size and seed, cut to fewer samples where the part says so."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch.utils.data import Dataset, Subset

from ...data import nest
from ...task import Task
from ...tasks import load_task
from .experiment import Part


def task_of(part: Part, seed: int) -> Task:
    task = load_task(part.task, part.batch_size) if isinstance(part.task, str) else part.task()
    if part.batch_size is not None:
        task = task.replace(batch_size=part.batch_size)
    if part.train_samples is not None:
        task = task.replace(train=partial(first, task.train, part.train_samples))
    if part.test_samples is not None and task.test is not None:
        task = task.replace(test=partial(first, task.test, part.test_samples))
    return task.replace(seed=task.seed + seed, **part.change)


def first(data: Any, count: int) -> Any:
    """The first samples of data in memory or of a Dataset; `data` may be a factory, as in a task."""
    made = data() if isinstance(data, Callable) and not isinstance(data, Dataset) else data  # type: ignore[arg-type]
    if isinstance(made, tuple):
        return nest.each(made, lambda values: values[:count])
    return Subset(made, range(min(count, len(made))))
