"""Parts of a task taken out of play: batch statistics, 16-bit numbers, hooks on gradients, a data set's own randomness."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.data import Dataset

from ...data import nest
from ...data.keys import sample_keys
from ...data.loading import DatasetSource
from ...data.process_state import seeded
from ...model.torch_internals import BATCHNORMS, PARAMETER_HOOKS
from ...strategies.job import Job
from .calm import around_forward

COARSE = (torch.float16, torch.bfloat16)

# ---------------------------------------------------------------- batch statistics


class Fixed:
    """Mixed into the class of a BatchNorm layer: it uses the statistics it has, in training too."""

    def train(self, mode: bool = True) -> Any:
        return super().train(False)  # type: ignore[misc]


def fixed_statistics(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, BATCHNORMS):
            own = type(module)
            module.__class__ = type(own.__name__, (Fixed, own), {})
            module.eval()


# ---------------------------------------------------------------- 16 bits


class FullPrecision(TorchFunctionMode):
    """Within it nothing is computed in 16 bits, whether a model asks for it or autocast does."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__name__", "") in ("half", "bfloat16"):
            return args[0].float()
        args = tuple(torch.float32 if value in COARSE else value for value in args) if _names_coarse(args) else args
        kwargs = {key: torch.float32 if _names_coarse([value]) else value for key, value in (kwargs or {}).items()}
        with ExitStack() as off:
            for device in ("cpu", "cuda"):
                if torch.is_autocast_enabled(device):
                    off.enter_context(torch.autocast(device, enabled=False))
            return function(*args, **kwargs)


def _names_coarse(values: Any) -> bool:
    return any(isinstance(value, torch.dtype) and value in COARSE for value in values)


class FullInput:
    """The task's augmentation, if it has one, on inputs of 32 bits."""

    def __init__(self, augment: Callable[..., Any] | None):
        self.augment = augment

    def __call__(self, input: Any, keys: Any) -> Any:
        made = input if self.augment is None else self.augment(input, keys)
        return nest.each(made, lambda tensor: tensor.float() if tensor.dtype in COARSE else tensor)


def full_precision(model: nn.Module) -> None:
    model._apply(lambda tensor: tensor.float() if tensor.dtype in COARSE else tensor)
    around_forward(model, _enter_full, _leave)


def _enter_full(module: nn.Module) -> TorchFunctionMode:
    mode = FullPrecision()
    mode.__enter__()
    return mode


def _leave(module: nn.Module, mode: TorchFunctionMode) -> None:
    mode.__exit__(None, None, None)


# ---------------------------------------------------------------- hooks on gradients


class NoHooks(TorchFunctionMode):
    """Within it hooks on tensors are not registered."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__name__", "") in ("register_hook", "register_post_accumulate_grad_hook"):
            return None
        return function(*args, **(kwargs or {}))


def without_hooks(model: nn.Module) -> None:
    for parameter in model.parameters():
        for hooks in (PARAMETER_HOOKS.found(parameter) if PARAMETER_HOOKS.found else {}).values():
            if hooks:
                hooks.clear()
    for module in model.modules():
        module._backward_hooks.clear()
        module._backward_pre_hooks.clear()
    around_forward(model, _enter_hookless, _leave)


def _enter_hookless(module: nn.Module) -> TorchFunctionMode:
    mode = NoHooks()
    mode.__enter__()
    return mode


def has_hooks(model: nn.Module) -> bool:
    tables = [PARAMETER_HOOKS.found(parameter) for parameter in model.parameters()] if PARAMETER_HOOKS.found else []
    on_parameters = any(hooks for table in tables for hooks in table.values())
    return on_parameters or any(module._backward_hooks or module._backward_pre_hooks for module in model.modules())


# ---------------------------------------------------------------- unused parameters


class EveryParameterReached:
    """The task's optimizer, for which a parameter without a gradient has one of zero."""

    def __init__(self, make: Callable[..., Any]):
        self.make = make

    def __call__(self, parameters: Any) -> Any:
        optimizer = self.make(parameters)
        optimizer.register_step_pre_hook(_fill)
        return optimizer


def _fill(optimizer: Any, *_: Any) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)


# ---------------------------------------------------------------- the data


class Kept(Dataset):
    """Samples as they were read once."""

    def __init__(self, samples: dict[int, Any], length: int):
        self.samples, self.length = samples, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


def read_once(job: Job, steps: int, collated: bool = False) -> Kept:
    """What a data set gives when it is read in order for so many steps; if `collated`, each sample as a batch of one."""
    assert isinstance(job.train, DatasetSource)
    planned = [step for epoch in job.order.epochs(0, min(steps, job.total_steps)) for step in epoch]
    read: dict[int, Any] = {}
    with seeded(job.task.seed):
        for step in planned:
            indices = job.order.indices(step)
            keys = sample_keys(job.order.seed, step.epoch, indices)
            for index, sample in zip(indices.tolist(), job.train.samples(indices, keys), strict=True):
                read.setdefault(index, sample)
        for index in range(min(len(job.train), 2)):  # looked at before a fit starts
            if index not in read:
                read[index] = job.train.dataset[index]
        if collated and job.train.collate.collate is not None:
            read = {index: job.train.collate.collate([sample]) for index, sample in read.items()}
    return Kept(read, len(job.train))
