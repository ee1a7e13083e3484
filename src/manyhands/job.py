"""Job: a task made ready for one fit. Factories called under the seed, data opened, everything checked.

A job is what strategies see. It is built once, in the caller's process, and travels to the ranks by value,
so every rank starts from equal weights and the caller's own model is never touched.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import UninitializedParameter
from torch.utils.data import Dataset

from .data import nest
from .data.batches import Source, TensorSource, make_source
from .data.generators import seeded
from .data.order import Order
from .data.stream import StreamSource
from .errors import BadInput
from .model.layout import channels_last_pays, lay_channels_last
from .task import Task
from .world.parcel import by_value_copy

PRECISIONS = ("fp32", "bf16")


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
    unused: tuple[str, ...] = ()  # trainable parameters the loss does not reach, as far as a probe could tell
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
    def has_batchnorm(self) -> bool:
        return any(isinstance(module, _BatchNorm) for module in self.model.modules())

    @property
    def has_dropout(self) -> bool:
        return any(isinstance(module, _DropoutNd) and module.p > 0 for module in self.model.modules()) or any(
            isinstance(module, nn.RNNBase) and module.dropout > 0 for module in self.model.modules()
        )


def build(task: Task, settings: Settings) -> Job:
    """Call the factories, open the data and refuse what cannot be trained."""
    if not isinstance(task, Task):
        raise BadInput(f"a Task is needed to train (found {type(task).__name__}); see manyhands.Task")
    with seeded(task.seed):
        model = _build_model(task)
        train = make_source(_made(task.train, "train"), task.collate, "train")
        test = None if task.test is None else make_source(_made(task.test, "test"), task.collate, "test")
    order = Order(len(train), task.batch_size, task.seed, settings.accumulate)
    job = Job(task, model, train, test, order, settings)
    _check_optimizer(job)
    return job


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


def _build_model(task: Task) -> nn.Module:
    if isinstance(task.model, nn.Module):
        return copy.deepcopy(task.model)
    model = task.model()
    if not isinstance(model, nn.Module):
        raise BadInput(f"task.model made a {type(model).__name__}, not a torch.nn.Module")
    return model


def _made(data: Any, name: str) -> Any:
    if callable(data) and not isinstance(data, Dataset | tuple | list):
        try:
            return data()
        except BadInput:
            raise
        except Exception as problem:
            raise BadInput(f"task.{name} failed to make its data: {type(problem).__name__}: {problem}") from problem
    return data


def _check_optimizer(job: Job) -> None:
    trainable = trained_parameters(job.model)
    if not trainable:
        raise BadInput(
            "the model has no parameters to train (none, or all frozen); the optimizer would have nothing to do"
        )
    lazy = next((name for name, parameter in trainable if isinstance(parameter, UninitializedParameter)), None)
    if lazy is not None:
        raise BadInput(
            f'the model\'s "{lazy}" has no shape yet (a lazy layer); run the model once over a sample before it is trained'
        )
    probe = [
        (name, nn.Parameter(parameter.detach()[:0] if parameter.dim() else parameter.detach().clone()))
        for name, parameter in trainable
    ]
    try:
        optimizer = job.task.optimizer(probe)
    except Exception as problem:
        raise BadInput(
            f"task.optimizer failed on the model's named parameters: {type(problem).__name__}: {problem}"
        ) from problem
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise BadInput(f"task.optimizer must make a torch.optim.Optimizer (found {type(optimizer).__name__})")
    if not any(group["params"] for group in optimizer.param_groups):
        raise BadInput("task.optimizer made an optimizer without parameters; hand it the named parameters it is given")


def trained_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Named parameters that are trained; frozen ones are left out everywhere alike."""
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]


def probe(job: Job, devices: Sequence[torch.device], any_layout: bool = True) -> None:
    """One pass over two samples: refuse targets and losses that cannot work, find parameters the loss misses, and
    choose how images lie in memory.

    It works on a copy by value, so that nothing it does reaches the caller or the ranks. What fails here for
    any other reason is left to the ranks, which name the step and phase.
    """
    try:
        with seeded(job.task.seed):
            example = job.example()
    except BadInput:
        raise
    except Exception as problem:
        raise BadInput(f"task.train: sample 0 cannot be read: {type(problem).__name__}: {problem}") from problem
    model, loss_of, augment, (input, target) = by_value_copy((job.model, job.task.loss, job.task.augment, example))
    model.train()
    place = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    input, target = (nest.each(value, lambda tensor: tensor.to(place)) for value in (input, target))
    with seeded(job.task.seed):
        try:
            if augment is not None:
                input = augment(input, torch.arange(nest.count(input), dtype=torch.int64, device=place))
            output = model(input)
        except Exception:
            return
        _check_class_targets(job, output, target)
        try:
            loss = loss_of(output, target)
        except Exception:
            return
        _check_loss(loss)
        try:
            loss.backward()
        except Exception:
            return
        job.unused = tuple(name for name, parameter in trained_parameters(model) if parameter.grad is None)
        if any_layout and not job.settings.compile and {place.type, *(device.type for device in devices)} == {"cpu"}:
            _choose_layout(job, input, target)


def _choose_layout(job: Job, input: Any, target: Any) -> None:
    """Lay the model's images out with channels last, where its layers are faster so on CPU."""
    model, loss_of = by_value_copy((job.model, job.task.loss))
    if channels_last_pays(model, lambda model: loss_of(model(input), target)):
        job.model = lay_channels_last(job.model)
        job.channels_last = True


def _check_loss(loss: Any) -> None:
    if not isinstance(loss, Tensor):
        raise BadInput(f"task.loss must return a tensor with one number (found {type(loss).__name__})")
    if loss.numel() != 1:
        raise BadInput(
            f"task.loss must return one number, the mean over samples (found shape {tuple(loss.shape)}); use reduction='mean'"
        )


def _check_class_targets(job: Job, output: Any, target: Any) -> None:
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
    if isinstance(labels, Tensor) and labels.numel():
        low, high = int(labels.min()), int(labels.max())
        ignored = getattr(job.task.loss, "ignore_index", -100)
        if high >= classes or (low < 0 and low != ignored):
            raise BadInput(
                f"targets hold classes {low} to {high} but the model's output has {classes} (0 to {classes - 1})"
            )


def _loss_name(loss: Any) -> str | None:
    """cross_entropy or nll_loss where the loss plainly is one of torch's, else None."""
    inner = getattr(loss, "func", loss)  # functools.partial
    name = getattr(inner, "__name__", None) or type(inner).__name__
    module = getattr(inner, "__module__", "") or ""
    if not module.startswith("torch."):
        return None
    plain = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower().removesuffix("_loss")
    return {"cross_entropy": "cross_entropy", "nll": "nll_loss", "n_l_l": "nll_loss"}.get(plain)
