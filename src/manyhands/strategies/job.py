"""Job: a task made ready for one fit. Factories called under the seed, data opened, everything checked.

A job is what strategies see. It is built once, in the caller's process, and travels to the ranks by value,
so every rank starts from equal weights and the caller's own model is never touched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from ..data.order import Order
from ..data.random_state import seeded
from ..data.sources import Source, make_source
from ..data.stream import StreamSource
from ..errors import BadInput
from ..model.optimizers import Manner, check_optimizer, manner
from ..model.recipe import Recipe
from ..model.torch_internals import BATCHNORMS
from ..task import Task
from ..training.proof.proof import Proof
from ..world.launch.by_value import by_value_copy

PRECISIONS = ("fp32", "bf16")
REFER_TO_MODEL = ("loss", "optimizer", "schedule", "augment", "metrics", "sample")


@dataclass(frozen=True)
class Settings:
    """The options of one fit that change what a step computes."""

    accumulate: int = 1
    clip: float | None = None
    precision: str = "fp32"
    sync_batchnorm: bool = False
    epochs: int = 1
    max_steps: int | None = None
    loader_workers: int | str | None = None
    capture: str = "auto"
    compile: bool = False
    fuse: bool = True  # one kernel for the whole update, where torch has one


@dataclass
class Job:
    """A task with everything built, the order of its data, and the settings of the fit."""

    task: Task
    model: nn.Module
    train: Source
    test: Source | None
    order: Order
    settings: Settings
    proof: Proof = field(default_factory=Proof)  # what was found out before the start about the model and its loss,
    manner: Manner = field(default_factory=Manner)  # and about the optimizer
    channels_last: bool = False  # whether the model's images lie in memory so
    prepared: Any = None  # what the strategy worked out once, on the caller's side, for all ranks
    notes: list[str] = field(default_factory=list)

    @property
    def total_updates(self) -> int:
        """The updates a whole fit makes: the span of the schedule, whatever max_steps says.

        A stream without a length has only max_steps to go by.
        """
        if self.endless:
            return -(-self.total_steps // self.settings.accumulate)
        return self.settings.epochs * self.order.updates_per_epoch

    @property
    def total_steps(self) -> int:
        whole = self.settings.epochs * self.order.steps_per_epoch
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

    def copies(self) -> tuple[nn.Module, Callable[..., Any], Callable[..., Any] | None]:
        """The model, the loss and the augmentation to try things on: nothing done to them reaches anybody."""
        model, loss, augment = by_value_copy((self._as_sent, self.task.loss, self.task.augment))
        return model.make() if isinstance(model, Recipe) else model, loss, augment

    @property
    def _as_sent(self) -> nn.Module | Recipe:
        """The model by value, or by its factory where there is one."""
        if isinstance(self.task.model, nn.Module):
            return self.model
        return Recipe.of(self.model, self.task.model, self.task.seed)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "model": self._as_sent}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if isinstance(self.model, Recipe):
            self.model = self.model.make().train()


def build(task: Task, settings: Settings) -> Job:
    """Call the factories, open the data and refuse what cannot be trained."""
    if not isinstance(task, Task):
        raise BadInput(f"a Task is needed to train (found {type(task).__name__}); see manyhands.Task")
    with seeded(task.seed):
        task, model = _build_model(task)
        train = make_source(_made(task.train, "train"), task.collate, "train")
        test = None if task.test is None else make_source(_made(task.test, "test"), task.collate, "test")
    order = Order(len(train), task.batch_size, task.seed, settings.accumulate)
    job = Job(task, model.train(), train, test, order, settings)
    _check_layouts(model)
    check_optimizer(task, trained_parameters(model), job.total_updates)
    job.manner = manner(task, trained_parameters(model))
    return job


def _check_layouts(model: nn.Module) -> None:
    """What cannot be laid into shared memory and files is refused before a rank trips over it."""
    held = chain(model.named_parameters(), model.named_buffers())
    sparse = next((name for name, tensor in held if tensor.layout != torch.strided), None)
    if sparse is not None:
        raise BadInput(
            f'the model\'s "{sparse}" is a sparse tensor, which ranks cannot share; register it dense and call '
            "to_sparse() in the forward pass"
        )


def check_length(job: Job) -> None:
    """How many steps there are must be known before the first: a stream may not say."""
    if not isinstance(job.train, StreamSource):
        return
    epochs, workers = job.settings.epochs, job.settings.loader_workers
    if job.endless and job.settings.max_steps is None:
        raise BadInput(
            "task.train is a stream without a length, so nobody knows how many steps an epoch has; "
            "give max_steps (--max-steps), or give it a __len__ (samples of an epoch)"
        )
    if job.endless and epochs > 1:
        raise BadInput(
            f"task.train is a stream without a length, so {epochs} epochs cannot be told apart; "
            "use epochs=1 with max_steps for the whole fit, or give it a __len__ (samples of an epoch)"
        )
    if isinstance(workers, int) and workers > 1:
        raise BadInput(f"a stream is read by one worker process a rank (loader_workers: {workers}); use 0, 1 or auto")


def _build_model(task: Task) -> tuple[Task, nn.Module]:
    """The model, and the task around it. One that was given is copied together with what may refer to it."""
    if isinstance(task.model, nn.Module):
        try:
            model, changes = by_value_copy((task.model, {name: getattr(task, name) for name in REFER_TO_MODEL}))
        except Exception as problem:
            kind, reason = type(task.model).__name__, str(problem).strip().splitlines()[0]
            raise BadInput(
                f"task.model ({kind}) cannot be sent to the ranks ({reason}); "
                "give the function that makes it instead of the model: model=make_model"
            ) from problem
        return task.replace(model=model, **changes), model
    model = task.model()
    if not isinstance(model, nn.Module):
        raise BadInput(f"task.model made a {type(model).__name__}, not a torch.nn.Module")
    return task, model


def _made(data: Any, name: str) -> Any:
    if callable(data) and not isinstance(data, Dataset | tuple | list):
        try:
            return data()
        except BadInput:
            raise
        except Exception as problem:
            raise BadInput(f"task.{name} failed to make its data: {type(problem).__name__}: {problem}") from problem
    return data


def trained_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Named parameters that are trained; frozen ones are left out everywhere alike."""
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
