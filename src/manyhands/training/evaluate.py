"""Evaluation: every sample counted once, sums divided by the true number of samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..data.feed import each_once
from ..data.process_state import seeded
from ..errors import BadInput
from ..model.wide_products import wide_products
from ..strategies.job import Job, StepSettings
from ..task import Task
from ..world.launch.forked import without_lost_threads
from .build import build
from .evaluation import Evaluation
from .metrics import Metrics
from .proof.probe import try_to_evaluate


@without_lost_threads
def evaluate(
    task: Task,
    weights: Mapping[str, Tensor],
    *,
    device: str | torch.device = "cpu",
    data: str = "test",
    eval_batch_size: int | None = None,
) -> dict[str, Any]:
    """Loss, accuracy and accuracy per class, or the task's metrics, of weights on the test set (or `data="train"`).

    `eval_batch_size` samples pass the model at a time: the task's own, else its batch size, unless given here.
    """
    if eval_batch_size is not None and isinstance(task, Task):
        task = task.replace(eval_batch_size=eval_batch_size)
    job = build(task, StepSettings())
    source = {"test": job.test, "train": job.train}.get(data)
    if source is None:
        raise BadInput(f"this task has no {data} data to evaluate on")
    if data == "train" and job.endless:
        raise BadInput("task.train is a stream that does not say where it ends; give it a __len__ to evaluate on it")
    place = torch.device(device)
    try_to_evaluate(job, place)
    model = with_weights(job.model, weights)
    with wide_products(job.wide_products):
        return Evaluation(job, model, source, place).figures()


@torch.no_grad()
def failing_metric(job: Job) -> str | None:
    """What a metric says of two test samples, where it fails on them: known now, not after an epoch."""
    if job.test is None or not job.task.metrics:
        return None
    model, calling, _ = job.copies()
    try:
        with seeded(job.task.seed):
            input, target, count = next(each_once(job.test, 2, torch.device("cpu")))
            output = calling.output(model.eval(), input)
    except Exception:  # a test set or model that cannot be tried so is the ranks' to name
        return None
    try:
        Metrics(job.task.metrics, torch.device("cpu")).update(output, target, count)
    except BadInput as problem:
        return str(problem)
    return None


def with_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    """The model with these weights, or one line that says which name does not fit."""
    own = model.state_dict()
    for name in [*own, *weights]:
        if name not in weights or name not in own:
            missing = "the weights" if name not in weights else "the model"
            raise BadInput(f'these weights belong to another model: {missing} have no "{name}"')
        if own[name].shape != weights[name].shape:
            raise BadInput(
                f'these weights belong to another model: "{name}" is {tuple(weights[name].shape)}, '
                f"the model has {tuple(own[name].shape)}"
            )
    model.load_state_dict(dict(weights))
    return model
