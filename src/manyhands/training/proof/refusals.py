"""Mistakes that one pass over two samples shows, each refused in a line that says what to change."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ...data.sources import TensorSource
from ...errors import BadInput
from ...model.calling import Calling
from ...strategies.job import Job
from ...strategies.pieces.units import units_of


def check_same_parameters(before: dict[str, nn.Parameter], after: dict[str, nn.Parameter]) -> None:
    """The optimizer would not know the new ones, and every rank would draw its own."""
    new = next((name for name, parameter in after.items() if before.get(name) is not parameter), None)
    if new is not None:
        raise BadInput(
            f'the forward pass makes the parameter "{new}", which would not be trained; make it in __init__, '
            "or run the model once over a sample before it is trained"
        )


def check_loss(loss: Any) -> None:
    if not isinstance(loss, Tensor):
        raise BadInput(f"task.loss must return a tensor with one number (found {type(loss).__name__})")
    if loss.numel() != 1:
        raise BadInput(
            f"task.loss must return one number, the mean over samples (found shape {tuple(loss.shape)}); use reduction='mean'"
        )


def check_without_target(calling: Calling, output: Any, target: Any) -> None:
    """Samples may have no target, but then the loss must do without."""
    if target is not None or calling.loss is None:
        return
    try:
        calling.loss_of(output, None)
    except Exception as problem:
        raise BadInput(
            f"task.loss failed without a target ({type(problem).__name__}: {str(problem).strip().splitlines()[0]}), "
            'but samples have none; name its key (task.target="labels"), or give samples as (input, target)'
        ) from problem


def check_class_targets(job: Job, output: Any, target: Any) -> None:
    """The commonest mistake of all: targets that cross entropy cannot read."""
    kind = _loss_name(job.task.loss)
    if kind is None or not isinstance(output, Tensor) or not isinstance(target, Tensor) or output.dim() < 2:
        return
    classes = output.shape[1]
    wanted = (output.shape[0], *output.shape[2:])
    as_probabilities = kind == "cross_entropy" and target.is_floating_point() and target.shape == output.shape
    if as_probabilities:
        return
    full = (len(job.train), *target.shape[1:]) if isinstance(job.train, TensorSource) else tuple(target.shape)
    if target.dtype != torch.int64 or tuple(target.shape) != tuple(wanted):
        dtype = str(target.dtype).removeprefix("torch.")
        raise BadInput(f"targets are {dtype} {full} but {kind} expects class numbers (int64, one per sample)")
    labels = getattr(job.train, "target", target)
    if isinstance(labels, Tensor):
        keywords = getattr(job.task.loss, "keywords", {})  # functools.partial
        labels = labels[labels != keywords.get("ignore_index", getattr(job.task.loss, "ignore_index", -100))]
    if isinstance(labels, Tensor) and labels.numel():
        low, high = int(labels.min()), int(labels.max())
        if high >= classes or low < 0:
            raise BadInput(
                f"targets hold classes {low} to {high} but the model's output has {classes} (0 to {classes - 1})"
            )


def check_weight(weight: Callable[[Any], Any] | None, target: Any, samples: int) -> None:
    if weight is None:
        return
    try:
        units_of(weight, target)
    except BadInput:
        raise
    except Exception as problem:
        reason = f"{type(problem).__name__}: {problem}".splitlines()[0]
        raise BadInput(f"task.weight failed on the targets of {samples} samples: {reason}") from problem


def _loss_name(loss: Any) -> str | None:
    """cross_entropy or nll_loss where the loss plainly is one of torch's, else None."""
    inner = getattr(loss, "func", loss)  # functools.partial
    name = getattr(inner, "__name__", None) or type(inner).__name__
    module = getattr(inner, "__module__", "") or ""
    if not module.startswith("torch."):
        return None
    plain = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower().removesuffix("_loss")
    return {"cross_entropy": "cross_entropy", "nll": "nll_loss", "n_l_l": "nll_loss"}.get(plain)
