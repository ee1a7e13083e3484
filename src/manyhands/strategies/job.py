"""Job: a task made ready for one fit, with the settings of its steps and what is known of it before the start.

A job is what strategies see. It is built once, in the caller's process, and travels to the ranks by value,
so every rank starts from equal weights and the caller's own model is never touched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ..data.loading import DatasetSource
from ..data.order import Order
from ..data.sources import Source
from ..data.stream import StreamSource
from ..errors import BadInput
from ..model.calling import Calling
from ..model.optimizers import OptimizerTraits
from ..model.recipe import Recipe
from ..model.torch_internals import BATCHNORMS
from ..task import Task
from ..world.launch.by_value import by_value_copy, refuses_to_travel

PRECISIONS = ("fp32", "bf16")


@dataclass(frozen=True)
class StepSettings:
    """What a step computes, beyond the task: checked when it is made."""

    accumulate: int = 1
    clip: float | None = None
    precision: str = "fp32"
    sync_batchnorm: bool = False
    epochs: int | None = None  # None: the task's
    max_steps: int | None = None
    loader_workers: int | str | None = None
    capture: str = "auto"
    compile: bool = False
    fuse: bool = True  # one kernel for the whole update, where torch has one
    eval_every: int = 1  # epochs between evaluations; the end is always one
    eval_batches: int | None = None  # evaluate on so many alone: what evaluating holds (plan)
    keep_batches: int | None = None  # read so many, then use them again: what a step costs without reading (diagnose)

    def __post_init__(self) -> None:
        for name in ("accumulate", "epochs", "max_steps", "eval_every", "eval_batches", "keep_batches"):
            check_count(name, getattr(self, name))
        workers = self.loader_workers
        counted = isinstance(workers, int) and not isinstance(workers, bool) and workers >= 0
        if workers not in (None, "auto") and not counted:
            raise BadInput(f'loader_workers must be 0 or more, or "auto" (found {workers!r})')
        if self.precision not in PRECISIONS:
            raise BadInput(f'no precision named "{self.precision}"; there are: {", ".join(PRECISIONS)}')
        if self.clip is not None and not self.clip > 0:
            raise BadInput(f"clip must be above 0 (found {self.clip!r})")
        if self.capture not in ("auto", "off"):
            raise BadInput(f'capture must be "auto" or "off" (found {self.capture!r})')


def check_count(name: str, value: int | None) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise BadInput(f"{name} must be a whole number of at least 1 (found {value!r})")


@dataclass(frozen=True)
class Proof:
    """What was found. Sentences say what is wrong and where; None means that nothing was."""

    random: str | None = None  # where random numbers are drawn that change the loss
    mixed: str | None = None  # why the parts of a batch do not come to the same as the whole
    state: str | None = None  # what the forward pass keeps between batches
    follows_batch: bool = False  # ... and that it depends on the samples
    divides: str | None = None  # why a part of a batch cannot be computed at all
    writes: tuple[str, ...] = ()  # parameters that the forward pass writes
    unused: frozenset[str] = frozenset()  # trained parameters that some of the passes did not reach
    coarse: str | None = None  # the 16-bit type that the forward pass computes in
    rounding: str | None = None  # a parameter whose gradient is rounding alone, of which the optimizer makes steps
    reseeds: bool = False  # Python's or numpy's generator is drawn from: it must be seeded for each step
    unchecked: str | None = None  # why there is no proof


@dataclass
class Job:
    """A task with everything built, the order of its data, and the settings of the fit."""

    task: Task
    model: nn.Module
    train: Source
    test: Source | None
    order: Order
    settings: StepSettings
    calling: Calling
    proof: Proof = field(default_factory=Proof)  # what was found out before the start about the model and its loss,
    optimizer_traits: OptimizerTraits = field(default_factory=OptimizerTraits)  # and about the optimizer
    channels_last: bool = False  # whether the model's images lie in memory so
    wide_products: bool = False  # whether its products of matrices are made by model/wide_products.py
    prepared: Any = None  # what the strategy worked out once, on the caller's side, for all ranks
    weight: Callable[[Any], Any] | None = (
        None  # target -> units its loss is a mean over: given, or found; None: samples
    )
    notes: list[str] = field(default_factory=list)

    @property
    def epochs(self) -> int:
        return self.settings.epochs or self.task.epochs

    @property
    def total_updates(self) -> int:
        """The updates a whole fit makes: the span of the schedule, whatever max_steps says.

        A stream without a length has only max_steps to go by.
        """
        if self.endless:
            return -(-self.total_steps // self.settings.accumulate)
        return self.epochs * self.order.updates_per_epoch

    @property
    def total_steps(self) -> int:
        whole = self.epochs * self.order.steps_per_epoch
        return whole if self.settings.max_steps is None else min(whole, self.settings.max_steps)

    @property
    def endless(self) -> bool:
        """Whether the training data is a stream that does not say how long it is."""
        return isinstance(self.train, StreamSource) and self.train.endless

    def example(self, samples: int = 2) -> tuple[Any, Any]:
        """A few samples, for probing shapes and costs."""
        return self.train.gather(torch.arange(min(samples, len(self.train))))

    @property
    def unused(self) -> frozenset[str]:
        """Trained parameters that the loss does not reach with every batch, as far as a few samples could tell."""
        return self.proof.unused

    @property
    def has_batchnorm(self) -> bool:
        return any(isinstance(module, BATCHNORMS) and module.training for module in self.model.modules())

    def copies(self) -> tuple[nn.Module, Calling, Callable[..., Any] | None]:
        """The model, how it is called, and the augmentation to try things on: nothing done to them reaches anybody."""
        model, calling, augment = by_value_copy((self._as_sent, self.calling, self.task.augment))
        return model.make() if isinstance(model, Recipe) else model, calling, augment

    @property
    def _as_sent(self) -> nn.Module | Recipe:
        """The model by value, or by its factory where there is one."""
        if isinstance(self.task.model, nn.Module):
            return self.model
        return Recipe.of(self.model, self.task.model, self.task.seed)

    def __getstate__(self) -> dict[str, Any]:
        for source in (self.train, self.test):
            if isinstance(source, DatasetSource):
                source.leave_behind(lambda value: refuses_to_travel(value) is not None)
        return {**vars(self), "model": self._as_sent}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if isinstance(self.model, Recipe):
            self.model = self.model.make().train()


def trained_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Named parameters that are trained; frozen ones are left out everywhere alike."""
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
