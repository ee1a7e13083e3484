"""What counts samples in a task's batches, for strategies that split them: learnt before the start or refused."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ...data import nest
from ...data.process_state import seeded
from ...data.splitting import Rule, Unsplittable, learn
from ...world.launch.by_value import by_value_copy
from ..contract import Strategy, refuse
from ..job import Job


class BatchRules(NamedTuple):
    """How the inputs and the targets of every batch are split."""

    input: Rule
    target: Rule


class Example(NamedTuple):
    """A batch as the model gets it, and its number of samples."""

    input: Any
    target: Any
    samples: int


def two_examples(job: Job) -> tuple[Example, Example]:
    """Two small batches of different sizes (of one, where the task has a single sample), copied and augmented."""
    most = min(3, len(job.train))
    augment = by_value_copy(job.task.augment)
    found = []
    for samples in (most, max(most - 1, 1)):
        with seeded(job.task.seed):
            input, target = by_value_copy(job.example(samples))
            if augment is not None:
                input = augment(input, torch.arange(samples, dtype=torch.int64))
        found.append(Example(input, target, samples))
    return found[0], found[1]


def batch_rules(strategy: Strategy, job: Job) -> BatchRules:
    """Refuse batches that cannot be split; else say how they are."""
    more, fewer = two_examples(job)
    samples = more.samples, fewer.samples
    found = []
    for name, one, other in (("inputs", more.input, fewer.input), ("targets", more.target, fewer.target)):
        if any(tensor.layout != torch.strided for tensor in nest.leaves(one)):
            raise refuse(strategy, f"splits batches, which sparse tensors do not allow (found in the {name}); use ddp")
        try:
            found.append(learn(one, other, samples))
        except Unsplittable as problem:
            raise refuse(
                strategy,
                f"splits batches, so every tensor must have one row and every list one entry per sample "
                f"(found in the {name}: {problem}); collate them so, or use ddp",
            ) from problem
    return BatchRules(*found)
