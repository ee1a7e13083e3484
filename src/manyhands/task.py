"""Task: what is trained. A plain value; nothing is built, moved or started by making one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Dataset

from .errors import BadInput


@dataclass(frozen=True)
class Task:
    """A model, its data, its loss and its recipe.

    `model`, `train` and `test` may be values or factories; factories run under `seed`, so that every fit
    starts from equal weights. Samples are (input, target); an input may be any nest of tensors whose first
    dimension counts samples. `loss` returns the mean over the samples it is given.
    """

    model: nn.Module | Callable[[], nn.Module]
    train: Dataset | tuple[Any, Any] | Callable[[], Any]
    loss: Callable[..., Tensor] | None = None  # None: the model gives its loss itself
    optimizer: Callable[[Iterable[tuple[str, nn.Parameter]]], Optimizer] = None  # type: ignore[assignment]
    test: Dataset | tuple[Any, Any] | Callable[[], Any] | None = None
    batch_size: int = 128
    epochs: int = 1
    schedule: Callable[[Optimizer, int], LRScheduler] | None = None
    augment: Callable[[Any, Tensor], Any] | None = None
    collate: Callable[[list[Any]], Any] | None = None
    metrics: dict[str, Any] | None = None  # functions of (output, target), or objects with update and compute
    call: str | None = None  # "one", "args" or "kwargs": model(input), model(*input), model(**input)
    target: str | tuple[str, ...] | None = None  # the key, or keys, of the target where samples are mappings
    weight: Callable[[Any], Any] | None = None  # target -> how many units (tokens, say) the loss is a mean over
    eval_batch_size: int | None = None  # samples per pass of an evaluation; None: batch_size
    ema: float | None = None  # decay of an average of the weights, kept per update
    seed: int = 0
    name: str = ""
    sample: Callable[[nn.Module, int], str] | None = None  # (trained model, length) -> text, for `train --sample N`

    def __post_init__(self) -> None:
        for name, least in (("batch_size", 1), ("epochs", 1), ("seed", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise BadInput(f"task.{name} must be a whole number of at least {least} (found {value!r})")
        size, decay = self.eval_batch_size, self.ema
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
            raise BadInput(f"task.eval_batch_size must be a whole number of at least 1, or None (found {size!r})")
        if decay is not None and (isinstance(decay, bool) or not isinstance(decay, int | float) or not 0 < decay < 1):
            raise BadInput(f"task.ema must be a decay above 0 and below 1, such as 0.999, or None (found {decay!r})")
        if isinstance(self.optimizer, Optimizer):
            raise BadInput(
                "task.optimizer must make an optimizer from named parameters, not be one: "
                f"use functools.partial(torch.optim.{type(self.optimizer).__name__}, lr=...)"
            )
        if not callable(self.optimizer):
            raise BadInput(f"task.optimizer must be callable (found {_kind(self.optimizer)})")
        for name in ("loss", "schedule", "augment", "collate", "sample", "weight"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise BadInput(f"task.{name} must be callable or None (found {_kind(value)})")
        if not isinstance(self.model, nn.Module) and not callable(self.model):
            raise BadInput(f"task.model must be a module or a function that makes one (found {_kind(self.model)})")
        if self.metrics is not None:
            for key, value in self.metrics.items():
                if not callable(value) and not (hasattr(value, "update") and hasattr(value, "compute")):
                    raise BadInput(
                        f"task.metrics[{key!r}] must be callable with (output, target), or have update and compute "
                        f"(found {_kind(value)})"
                    )

    def replace(self, **changes: Any) -> Task:
        """A copy of this task with some fields changed."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return Task(**{**values, **changes})


def _kind(value: object) -> str:
    return f"{type(value).__name__} {value!r}"[:80]
