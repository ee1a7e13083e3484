"""Where to cut a model into stages, worked out once on the caller's side, or why it cannot be cut."""

from __future__ import annotations

from time import process_time
from typing import Any

import torch

from ...data import nest
from ...data.process_state import seeded
from ...model import Cut, cut
from ...model.layer_costs import untouched
from ...model.wide_products import wide_products
from ..contract import Strategy, refuse
from ..job import Job

FEW = 4  # samples that the model is looked through with
MANY = 32  # samples that the costs of layers are measured with: fewer where
FORWARD_SECONDS = 0.1  # a forward pass over them takes longer
Balance = tuple[int, ...] | str


def cut_model(
    strategy: Strategy, job: Job, stages: int, balance: Balance, option: str = "--ranks", several: bool = False
) -> Cut:
    """Where to cut; names of layers are written a+b.

    `several`: whether a step runs the model's forward several times, on a part of the batch each.
    """
    if stages > 1 and job.optimizer_traits.joins_tensors:
        raise refuse(
            strategy,
            f"updates the layers of each stage alone, but this optimizer looks at all of them together (stages: {stages}); "
            "use ddp",
        )
    if isinstance(job.model, torch.jit.ScriptModule):
        raise refuse(
            strategy, "cannot look into a scripted model to cut it; give the model it was scripted from, or use ddp"
        )
    few, many = _counts(job)
    example, fewer = _input(job, few), _input(job, max(few - 1, 1))
    if len(list(nest.items(example))) != len(list(nest.items(fewer))):
        raise refuse(
            strategy,
            f"cuts models whose input holds the same number of tensors in every batch (found {_growing(example, fewer)} "
            "that grows with the number of samples); stack it, or leave it out, in task.collate, or use ddp",
        )
    if _beside_tensors(example) != _beside_tensors(fewer):
        raise refuse(
            strategy,
            f"cuts models whose input is the same in every batch but for its tensors (found {_beside_tensors(example)} "
            f"and {_beside_tensors(fewer)}); give what changes as a tensor, or use ddp",
        )
    asked = balance.split("+") if isinstance(balance, str) and "+" in balance else balance
    with wide_products(job.wide_products):  # the costs of layers are those that they will have
        pieces = cut(
            job.model.train(),
            stages,
            example,
            asked,
            call=job.calling.needed,
            fewer=fewer,
            many=_input(job, many) if many > few else None,
            strategy=strategy.name,
            option=option,
        )
    own = {name for name, _ in job.model.named_parameters()}
    if several and (written := sorted(own & pieces.program.written)):
        raise refuse(
            strategy,
            f'runs the forward several times per step, and it writes the parameter "{written[0]}" each time; '
            "use model_parallel, or chunks=1",
        )
    return pieces


def _counts(job: Job) -> tuple[int, int]:
    """How many samples to look through the model with, and to measure it with: a multiple, for some models take samples in
    pairs. One that cannot take a few is looked through with as many as it is measured with."""
    most = min(MANY, job.task.batch_size, len(job.train))
    few = min(FEW, most)
    seconds = 0.0
    try:
        with untouched(job.model) as mirror, torch.no_grad():
            for _ in range(2):  # the first pass of a program also loads what it computes with
                began = process_time()
                job.calling.needed(mirror, _input(job, few))
                seconds = process_time() - began
    except Exception:  # if it is anything else, cutting says what is wrong
        return most, most
    affordable = int(FORWARD_SECONDS / max(seconds, 1e-6))
    return few, few * max(1, min(most // few, affordable))


def _growing(more: Any, fewer: Any) -> str:
    """The first list with an entry per sample, in words."""
    inner, others = nest.children(more) or [], nest.children(fewer) or []
    if len(inner) != len(others):
        return f"a {type(more).__name__} of {type(inner[0]).__name__}"
    pairs = zip(inner, others, strict=True)
    return next((found for one, other in pairs if (found := _growing(one, other))), "")


def _beside_tensors(input: Any) -> list[str]:
    return [repr(leaf)[:40] for leaf in nest.items(input) if not isinstance(leaf, torch.Tensor)]


def _input(job: Job, samples: int) -> Any:
    """The first samples as the model gets them, on its device."""
    place = next((parameter.device for parameter in job.model.parameters()), torch.device("cpu"))
    with seeded(job.task.seed):
        input = nest.each(job.example(samples)[0], lambda tensor: tensor.to(place))
        if job.task.augment is not None:
            input = job.task.augment(input, torch.arange(samples, dtype=torch.int64, device=place))
    return input
