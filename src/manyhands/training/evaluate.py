"""Evaluation: every sample counted once, sums divided by the true number of samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..data.feed import each_once
from ..data.sources import Source
from ..errors import BadInput
from ..model.calling import Calling
from ..strategies.job import StepSettings
from ..strategies.pieces.units import units_of
from ..task import Task
from ..world.launch.forked import without_lost_threads
from .build import build

BATCH = 1000  # samples a pass; larger ones gain nothing and hold more memory


@without_lost_threads
def evaluate(
    task: Task,
    weights: Mapping[str, Tensor],
    *,
    device: str | torch.device = "cpu",
    data: str = "test",
) -> dict[str, Any]:
    """Loss, accuracy and accuracy per class of weights on the test set (or `data="train"`)."""
    job = build(task, StepSettings())
    source = {"test": job.test, "train": job.train}.get(data)
    if source is None:
        raise BadInput(f"this task has no {data} data to evaluate on")
    if data == "train" and job.endless:
        raise BadInput("task.train is a stream that does not say where it ends; give it a __len__ to evaluate on it")
    model = with_weights(job.model, weights).to(torch.device(device))
    return evaluate_model(task, job.calling, model, source, torch.device(device), job.weight)


def with_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    """The model with these weights, or one line that says which name does not fit."""
    own = model.state_dict()
    for name in [*own, *weights]:
        if name not in weights or name not in own:
            missing = "the weights" if name not in weights else "the model"
            raise BadInput(f'these weights are of another model: {missing} have no "{name}"')
        if own[name].shape != weights[name].shape:
            raise BadInput(
                f'these weights are of another model: "{name}" is {tuple(weights[name].shape)}, '
                f"the model has {tuple(own[name].shape)}"
            )
    model.load_state_dict(dict(weights))
    return model


@torch.no_grad()
def evaluate_model(
    task: Task,
    calling: Calling,
    model: nn.Module,
    source: Source,
    device: torch.device,
    weight: Callable[[Any], Any] | None = None,
) -> dict[str, Any]:
    """What the record calls `test`."""
    training = model.training
    model.eval()
    loss_sum = torch.zeros((), dtype=torch.float64)
    metrics: dict[str, float] = {}
    hits: _Hits | None = None
    samples, units = 0, 0.0
    for input, target, count in each_once(source, BATCH, device):
        samples += count
        output = calling.output(model, input)
        loss = calling.loss_of(output, target).double().cpu()
        number = float(count) if weight is None else float(units_of(weight, target))
        loss_sum += loss * number if number else 0.0
        units += number
        for name, metric in (task.metrics or {}).items():
            metrics[name] = metrics.get(name, 0.0) + _mean(metric(output, target)) * count
        if task.metrics is None and (right := _right(output, target)) is not None:
            hits = hits or _Hits()
            hits.add(right, target)
    model.train(training)
    result: dict[str, Any] = {
        "samples": samples,
        "loss": float(loss_sum) / units if units else None,
        "accuracy": None,
        "per_class": {},
    }
    result.update({name: total / samples for name, total in metrics.items()})
    if hits is not None:
        result.update(hits.result())
    return result


def _mean(value: Any) -> float:
    return float(value.double().mean()) if isinstance(value, Tensor) else float(value)


def _right(output: Any, target: Any) -> Tensor | None:
    """Which predictions are right, where the targets are class numbers; None where they are not."""
    if not isinstance(output, Tensor) or not isinstance(target, Tensor) or target.is_floating_point():
        return None
    for dim in (1, -1):
        if output.dim() == target.dim() + 1 and output.shape[dim] > 1:
            predicted = output.argmax(dim)
            if predicted.shape == target.shape:
                return predicted == target
    if output.shape == target.shape and output.is_floating_point():  # one logit a sample
        return (output > 0) == target.bool()
    return None


class _Hits:
    """Right answers and samples of each class."""

    def __init__(self) -> None:
        self.right = torch.zeros(0, dtype=torch.int64)
        self.seen = torch.zeros(0, dtype=torch.int64)

    def add(self, right: Tensor, target: Tensor) -> None:
        right, target = right.reshape(-1).cpu(), target.reshape(-1).cpu().long()
        known = target >= 0  # ignored positions are negative by torch's convention
        right, target = right[known], target[known]
        size = max(len(self.seen), int(target.max()) + 1 if len(target) else 0)
        self.seen = _grow(self.seen, size) + torch.bincount(target, minlength=size)
        self.right = _grow(self.right, size) + torch.bincount(target[right], minlength=size)

    def result(self) -> dict[str, Any]:
        total = int(self.seen.sum())
        return {
            "accuracy": float(self.right.sum()) / total if total else None,
            "per_class": {
                str(number): float(self.right[number]) / int(seen)
                for number, seen in enumerate(self.seen.tolist())
                if seen
            },
        }


def _grow(counts: Tensor, size: int) -> Tensor:
    return torch.cat([counts, counts.new_zeros(size - len(counts))])
