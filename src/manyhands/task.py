"""Task: what is trained. A plain value; nothing is built, moved or started by making one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset

from .data.loader_parts import LoaderParts
from .errors import BadInput, did_you_mean

CALLS = ("one", "args", "kwargs")


@dataclass(frozen=True)
class Task:
    """A model, its data, its loss and its recipe.

    `model`, `train` and `test` may be values or factories; factories run under `seed`, so that every fit starts from equal
    weights. A task is a frozen value: `task.replace(batch_size=64)` returns a changed copy.

    Attributes:
        model: A module, or a function without arguments that makes one.
        train: The training samples: a Dataset, a DataLoader (which is taken apart), tensors `(input, target)`, a stream, or a
            function that makes one of these. Samples are `(input, target)`, or mappings whose `target` is named; an
            input may be any nest of tensors whose first dimension counts samples.
        loss: `(output, target)` to a tensor: the mean over the samples it is given. None: the model returns its loss.
        optimizer: Makes the optimizer from named parameters, such as `functools.partial(torch.optim.SGD, lr=0.1)`.
        test: The test samples, in the same forms as `train`. None: nothing is evaluated.
        batch_size: Samples that one step consumes over all ranks together.
        epochs: Passes over the training samples.
        schedule: `(optimizer, total updates)` to a learning-rate schedule, which is stepped once per update.
        augment: `(input, keys)` to the augmented input, for whole batches on the rank's device. `keys` holds one 64-bit
            number per sample, the same for every strategy and number of ranks.
        collate: Makes a batch from a list of samples, for samples that cannot simply be stacked.
        metrics: Figures for the evaluation, by name: functions of `(output, target)`, or objects with `update` and
            `compute`. None: accuracy and accuracy per class, where targets are class numbers.
        call: How the model is called: `"one"` for `model(input)`, `"args"` for `model(*input)`, `"kwargs"` for
            `model(**input)`. None: chosen from the signature of `forward` and the input.
        target: The key of the target, or a tuple of keys, where samples are mappings.
        weight: `target` to the number of units (tokens, say) that the loss is a mean over. None: samples, or what is
            found for cross entropy.
        eval_batch_size: Samples per pass of an evaluation. None: `batch_size`.
        ema: The decay of an average of the weights, updated once per update and stored beside them. None: no average.
        seed: The seed of weights, order and augmentation.
        name: The name in records, tables and folders.
        sample: `(trained model, length)` to text, for `manyhands train --sample N`.
    """

    model: nn.Module | Callable[[], nn.Module]
    train: Dataset | DataLoader | LoaderParts | tuple[Any, Any] | Callable[[], Any] | Any
    loss: Callable[..., Tensor] | None = None  # None: the model gives its loss itself
    optimizer: Callable[[Iterable[tuple[str, nn.Parameter]]], Optimizer] = None  # type: ignore[assignment]
    test: Dataset | DataLoader | LoaderParts | tuple[Any, Any] | Callable[[], Any] | Any | None = None
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
        self._take_loaders_apart()
        self._check_numbers()
        _check_optimizer(self.optimizer)
        if inspect.isclass(self.loss):
            raise BadInput(
                f"task.loss is the class {self.loss.__name__}, not an instance of it: {_likely('loss', self.loss)}"
            )
        for name in ("loss", "schedule", "augment", "collate", "sample", "weight"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise BadInput(f"task.{name} must be callable or None (found {_kind(value)})")
        if not isinstance(self.model, nn.Module):
            if not callable(self.model):
                raise BadInput(f"task.model must be a module or a function that makes one (found {_kind(self.model)})")
            if needed := _needed(self.model):
                raise BadInput(
                    f"task.model {_named(self.model)} needs {needed}: {_likely('model', self.model, 'lambda: ')}"
                )
        if self.call is not None and self.call not in CALLS:
            raise BadInput(
                f'task.call must be "one", "args" or "kwargs" (found {self.call!r}){did_you_mean(str(self.call), CALLS)}'
            )
        self._check_target()
        for key, value in (self.metrics or {}).items():
            if not callable(value) and not (hasattr(value, "update") and hasattr(value, "compute")):
                raise BadInput(
                    f"task.metrics[{key!r}] must be callable with (output, target), or have update and compute "
                    f"(found {_kind(value)})"
                )

    def _take_loaders_apart(self) -> None:
        for field, size in (("train", "batch_size"), ("test", "eval_batch_size")):
            value = getattr(self, field)
            if not isinstance(value, DataLoader):
                continue
            parts, own = LoaderParts.of(value, field), getattr(self, size)
            if own not in (Task.__dataclass_fields__[size].default, parts.batch_size):
                raise BadInput(
                    f"task.{size} is {own}, but the DataLoader of task.{field} has batch_size={parts.batch_size}; "
                    "give one of the two"
                )
            if self.collate is not None and field == "train" and parts.collate not in (None, self.collate):
                raise BadInput(
                    "the DataLoader of task.train has a collate_fn, and task.collate is another; give one of the two"
                )
            object.__setattr__(self, field, parts)
            object.__setattr__(self, size, parts.batch_size)

    def _check_numbers(self) -> None:
        for name, least in (("batch_size", 1), ("epochs", 1), ("seed", 0), ("eval_batch_size", 1)):
            value = getattr(self, name)
            if name == "eval_batch_size" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise BadInput(f"task.{name} must be a whole number of at least {least} (found {value!r})")
        if self.ema is not None and not (isinstance(self.ema, int | float) and 0 < self.ema < 1):
            raise BadInput(f"task.ema must be above 0 and below 1, such as 0.999 (found {self.ema!r})")

    def _check_target(self) -> None:
        keys = self.target if isinstance(self.target, tuple) else (self.target,)
        if self.target is not None and not (keys and all(isinstance(key, str) for key in keys)):
            raise BadInput(
                f"task.target must be the key of the target, or a tuple of keys (found {_kind(self.target)})"
            )

    def replace(self, **changes: Any) -> Task:
        """A copy of this task with some fields changed."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return Task(**{**values, **changes})


def _check_optimizer(optimizer: Any) -> None:
    if isinstance(optimizer, Optimizer):
        raise BadInput(
            "task.optimizer must make an optimizer from named parameters, not be one: "
            f"use functools.partial(torch.optim.{type(optimizer).__name__}, lr=...)"
        )
    if isinstance(optimizer, tuple | list):
        raise BadInput(
            f"task.optimizer is a {type(optimizer).__name__} of {len(optimizer)}, but one optimizer updates the whole model "
            "(training with several, as for a GAN, is not supported); for rates of their own give one optimizer with "
            "parameter groups"
        )
    if optimizer is None:
        raise BadInput(
            "task.optimizer is missing; for example: optimizer=functools.partial(torch.optim.AdamW, lr=1e-3)"
        )
    if not callable(optimizer):
        raise BadInput(f"task.optimizer must be callable (found {_kind(optimizer)})")
    if inspect.isclass(optimizer) and (needed := _needed(optimizer, given=1)):
        raise BadInput(
            f"task.optimizer is the class {optimizer.__name__}, which needs {needed}: "
            f"use optimizer=functools.partial({optimizer.__name__}, {needed.split(', ')[0]}=...)"
        )


def _needed(function: Callable[..., Any], given: int = 0) -> str:
    """The arguments that must be given beyond the first few, by name."""
    try:
        parameters = list(inspect.signature(function).parameters.values())[given:]
    except (TypeError, ValueError):
        return ""
    open_ended = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return ", ".join(item.name for item in parameters if item.default is item.empty and item.kind not in open_ended)


def _named(function: Any) -> str:
    kind = "class" if inspect.isclass(function) else "function"
    return f"is the {kind} {getattr(function, '__name__', type(function).__name__)}, which"


def _likely(field: str, made: Any, before: str = "") -> str:
    """The line that was meant, where a class was given."""
    prefix = "nn." if str(getattr(made, "__module__", "")).startswith("torch.nn.") else ""
    needed = _needed(made)
    arguments = ", ".join(f"{name}=..." for name in needed.split(", ")) if needed else ""
    return f"use {field}={before}{prefix}{getattr(made, '__name__', 'make_model')}({arguments})"


def _kind(value: object) -> str:
    return f"{type(value).__name__} {value!r}"[:80]
