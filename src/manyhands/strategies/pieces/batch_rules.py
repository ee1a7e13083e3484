"""What counts samples in batches and outputs, for strategies that split and join them: learnt before the start or refused."""

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


class ReplicaRules(NamedTuple):
    """How batches are split over replicas, and outputs joined again where they are gathered."""

    batch: BatchRules
    output: Rule | None


def replica_rules(strategy: Strategy, job: Job, gathers: bool) -> ReplicaRules:
    """What counts samples in batches and outputs; those that cannot be split or gathered are refused."""
    rules = batch_rules(strategy, job)
    more, fewer = two_examples(job)
    model = job.copies()[0].train()
    try:
        with seeded(job.task.seed), torch.no_grad():
            outputs = job.calling.needed(model, more.input), job.calling.needed(model, fewer.input)
    except Exception:
        return ReplicaRules(rules, None)  # what fails for other reasons is left to the ranks, which name step and phase
    if (hidden := nest.opaque(outputs[0])) is not None:
        raise refuse(
            strategy,
            f"cannot follow tensors out of an object of the model's own kind (the output holds: {type(hidden).__name__}); "
            "return tensors in tuples, dictionaries or dataclasses, or use ddp",
        )
    return ReplicaRules(rules, _output_rule(strategy, outputs, (more.samples, fewer.samples)) if gathers else None)


def _output_rule(strategy: Strategy, outputs: tuple[Any, Any], samples: tuple[int, int]) -> Rule:
    advice = "use balanced_data_parallel, which leaves them where they are"
    single = next((tensor for tensor in nest.leaves(outputs[0]) if not tensor.dim()), None)
    if any(tensor.layout != torch.strided for tensor in nest.leaves(outputs[0])):
        raise refuse(strategy, f"gathers outputs, which sparse tensors do not allow; {advice}")
    try:
        rule = learn(*outputs, samples)
    except Unsplittable as problem:
        raise refuse(
            strategy,
            f"gathers outputs along the first dimension, which must count samples (found {problem}); {advice}",
        ) from problem
    if single is not None:
        raise refuse(
            strategy,
            f"gathers outputs along the first dimension, which must count samples (found a tensor of shape () for "
            f"{samples[0]} samples); {advice}",
        )
    return rule
