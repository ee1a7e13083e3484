"""Variants of a task that ask one question each: its gradient, one rounding elsewhere, the same in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...data import nest
from ...model.call_choice import takes_output_alone
from ...task import Task
from ...training.build import REFER_TO_MODEL
from ...world.launch.by_value import by_value_copy

ModelChange = Callable[[nn.Module], Any]  # in place
WIDER = {torch.float32: torch.float64, torch.complex64: torch.complex128}


@dataclass(frozen=True)
class Changed:
    """A factory whose model is changed after it was made."""

    factory: Callable[[], nn.Module]
    change: ModelChange

    def __call__(self) -> nn.Module:
        usual = torch.get_default_dtype()
        torch.set_default_dtype(torch.float32)  # the numbers a factory draws depend on it
        try:
            model = self.factory()
        finally:
            torch.set_default_dtype(usual)
        self.change(model)
        return model


def with_model(task: Task, change: ModelChange) -> Task:
    """The task with its model changed. One that was given is copied together with what may refer to it."""
    if not isinstance(task.model, nn.Module):
        return task.replace(model=Changed(task.model, change))
    model, referring = by_value_copy((task.model, {name: getattr(task, name) for name in REFER_TO_MODEL}))
    change(model)
    return task.replace(model=model, **referring)


class ChangedLoss:
    """The base of losses around the task's own, called with output and target whatever that one takes."""

    def __init__(self, loss: Callable[..., Tensor]):
        self.loss, self.alone = loss, takes_output_alone(loss)

    def __call__(self, output: Any, target: Any) -> Tensor:
        return self.own(output, target)

    def own(self, output: Any, target: Any) -> Tensor:
        return self.loss(output) if self.alone else self.loss(output, target)


# ---------------------------------------------------------------- the gradient


class GradientAsWeights(Optimizer):
    """Its one update leaves the gradient, bit by bit, where the weights were; zero where there was none."""

    def __init__(self, parameters: Any):
        super().__init__(parameters, {"lr": 1.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                gradient = parameter.grad
                parameter.zero_()
                if gradient is not None:
                    parameter.add_(gradient)


def gradient_kept(task: Task) -> Task:
    """A fit of one update then ends with the gradient in place of the weights."""
    return task.replace(optimizer=GradientAsWeights, schedule=None, ema=None)


# ---------------------------------------------------------------- one rounding elsewhere


@dataclass(frozen=True)
class Nudge:
    """Every weight goes to the next number up or down that its type holds, or stays."""

    seed: int

    @torch.no_grad()
    def __call__(self, model: nn.Module) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        for parameter in model.parameters():
            if parameter.is_floating_point() and parameter.layout == torch.strided:
                way = torch.randint(-1, 2, parameter.shape, generator=generator).to(parameter.device)
                towards = torch.where(way > 0, torch.inf, -torch.inf).to(parameter.dtype)
                moved = (way != 0) & (parameter != 0)  # what is exactly zero was chosen, not rounded
                parameter.copy_(torch.where(moved, torch.nextafter(parameter, towards), parameter))


def nudged(task: Task, seed: int) -> Task:
    return with_model(task, Nudge(seed))


# ---------------------------------------------------------------- float64


def widened(tensor: Tensor) -> Tensor:
    return tensor.to(WIDER.get(tensor.dtype, tensor.dtype))


def widen(model: nn.Module) -> None:
    model._apply(widened)


@dataclass(frozen=True)
class WidenedInput:
    """The task's augmentation, if it has one, on inputs in float64."""

    augment: Callable[[Any, Tensor], Any] | None

    def __call__(self, input: Any, keys: Tensor) -> Any:
        return nest.each(input if self.augment is None else self.augment(input, keys), widened)


class WidenedLoss(ChangedLoss):
    def __call__(self, output: Any, target: Any) -> Tensor:
        return self.own(output, nest.each(target, widened))


def doubled(task: Task) -> Task:
    """Model, inputs and targets in float64, from the same weights and samples."""
    task = with_model(task, widen)
    loss = WidenedLoss(task.loss) if task.loss is not None else None
    return task.replace(augment=WidenedInput(task.augment), loss=loss)
