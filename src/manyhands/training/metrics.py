"""Metrics: figures of an evaluation beside its loss, as means over samples or gathered batch by batch.

a function of (output, target)       a mean for every batch; the figure is their mean over samples
an object with update and compute    update(output, target) for every batch, compute() at the end; a copy of it is used
a class or function that makes one   called once for each evaluation: it is what can be called without arguments

`compute` gives a number, a tensor or list of them, or a dictionary of figures. One rank evaluates all samples, so
nothing is merged over ranks.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..errors import BadInput
from ..world.launch.by_value import by_value_copy

OWN = ("samples", "per_class")  # what an evaluation says itself; its loss and accuracy may be replaced by other numbers
NUMBERS = ("loss", "accuracy")


def gathers(metric: Any) -> bool:
    """Whether a metric is updated with every batch and computed at the end."""
    return callable(getattr(metric, "update", None)) and callable(getattr(metric, "compute", None))


class Metrics:
    """The metrics of one evaluation. The task's own objects are never changed."""

    def __init__(self, metrics: Mapping[str, Any], device: torch.device):
        self._gathering: dict[str, Any] = {}
        self._means: dict[str, Callable[..., Any]] = {}
        self._sums: dict[str, float | Tensor] = {}  # on the GPU where that is where they are: nobody waits for it
        self._samples = 0
        for name, metric in metrics.items():
            with _named(name):
                if inspect.isclass(metric) or not gathers(metric):
                    if not _is_factory(metric):
                        self._means[name] = metric
                        continue
                    metric = _made(name, metric)
                else:
                    metric = by_value_copy(metric)
                self._gathering[name] = _ready(metric, device)

    @property
    def keep(self) -> bool:
        """Whether outputs may be needed after the batch: a mean is taken at once."""
        return bool(self._gathering)

    def update(self, output: Any, target: Any, count: int) -> None:
        """Take in a batch of `count` samples."""
        self._samples += count
        for name, mean in self._means.items():
            with _named(name):
                self._sums[name] = self._sums.get(name, 0.0) + _mean(mean(output, target)) * count
        for name, metric in self._gathering.items():
            with _named(name):
                metric.update(output, target)

    def result(self) -> dict[str, Any]:
        """The figures by name, as plain data."""
        found: dict[str, Any] = {name: float(total) / self._samples for name, total in self._sums.items()}
        for name, metric in self._gathering.items():
            with _named(name):
                found.update(_flat(name, metric.compute()))
        for name, value in found.items():
            if name in OWN or (name in NUMBERS and not isinstance(value, float)):
                kind = f"a figure of the evaluation itself (found {value!r})"
                raise BadInput(f'task.metrics: "{name}" is {kind}'[:160] + "; give the metric another name")
        return found


def _is_factory(metric: Any) -> bool:
    """Whether something callable makes a metric: a class does, and what needs no arguments; a metric needs two."""
    if inspect.isclass(metric):
        return True
    try:
        parameters = inspect.signature(metric).parameters.values()
    except (TypeError, ValueError):  # a built-in function says nothing of itself
        return False
    return not any(
        item.kind is inspect.Parameter.VAR_POSITIONAL
        or (item.default is inspect.Parameter.empty and item.kind is not inspect.Parameter.VAR_KEYWORD)
        for item in parameters
    )


def _made(name: str, factory: Callable[[], Any]) -> Any:
    metric = factory()
    if not gathers(metric):
        raise BadInput(
            f"task.metrics[{name!r}] was called without arguments and gave a {type(metric).__name__}; it must give an "
            "object with update(output, target) and compute(), or take (output, target) itself"
        )
    return metric


def _ready(metric: Any, device: torch.device) -> Any:
    """Empty, on the device, and alone: torchmetrics would wait for ranks that do not evaluate."""
    for part in metric.modules() if isinstance(metric, torch.nn.Module) else (metric,):
        if hasattr(part, "distributed_available_fn"):
            part.distributed_available_fn = lambda: False
    if isinstance(metric, torch.nn.Module):
        metric = metric.to(device)
    if callable(getattr(metric, "reset", None)):
        metric.reset()
    return metric


@contextmanager
def _named(name: str) -> Iterator[None]:
    """What a metric raises says which one it was."""
    try:
        yield
    except BadInput:
        raise
    except Exception as problem:
        reason = str(problem).strip().splitlines()
        raise BadInput(
            f"task.metrics[{name!r}] failed: {type(problem).__name__}{': ' if reason else ''}{' '.join(reason[:1])}"
        ) from problem


def _mean(value: Any) -> float | Tensor:
    if not isinstance(value, Tensor):
        return float(value)
    mean = value.double().mean()
    return mean if mean.is_cuda else float(mean)


def _flat(name: str, value: Any) -> dict[str, Any]:
    """A figure, or those of a dictionary, under names of their own."""
    if not isinstance(value, Mapping):
        return {name: _plain(value)}
    found: dict[str, Any] = {}
    for key, item in value.items():
        found.update(_flat(f"{name}_{key}" if name else str(key), item))
    return found


def _plain(value: Any) -> Any:
    """Numbers are floats, anything with several of them a list."""
    if value is None:
        return None
    if hasattr(value, "tolist"):  # tensors and numpy's arrays and numbers
        value = value.detach().double().tolist() if isinstance(value, Tensor) else value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return float(value)
