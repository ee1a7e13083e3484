"""A model that draws no random numbers: every draw gives the same number for every sample, on every rank."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ...data.process_state import seed_generators
from ...task import Task
from .variants import ChangedLoss, with_model

SEED = 0
FILLED: dict[str, float] = {  # with what a tensor is filled instead of random numbers
    "rand": 0.5, "rand_like": 0.5, "uniform_": 0.5, "randn": 0.0, "randn_like": 0.0, "normal_": 0.0,
    "exponential_": 1.0, "randint": 0, "randint_like": 0, "random_": 0,
}  # fmt: skip


class Calm(TorchFunctionMode):
    """Within it, dropout keeps everything and numbers that would be random are the middle of what they might be."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = dict(kwargs or {}), getattr(function, "__name__", "")
        if "dropout" in name and args:
            return args[0]
        if name == "scaled_dot_product_attention":
            kwargs["dropout_p"] = 0.0
            return function(*args[:4], *args[5:], **kwargs) if len(args) > 4 else function(*args, **kwargs)
        if name in ("bernoulli", "bernoulli_"):
            return _likely(name, args, kwargs)
        if name == "randperm":
            kwargs.pop("generator", None)
            return torch.arange(*args, **kwargs)
        if name == "normal" and args and isinstance(args[0], Tensor):
            return args[0].clone()
        if name == "multinomial":
            count = args[1] if len(args) > 1 else kwargs.get("num_samples", 1)
            return args[0].topk(count, dim=-1).indices
        if name in FILLED:
            return _filled(name, function, args, kwargs)
        return function(*args, **kwargs)


def _filled(name: str, function: Any, args: Any, kwargs: dict[str, Any]) -> Tensor:
    if name.endswith("_"):
        own: Tensor = args[0]
        low, high = ([*args[1:3], *(kwargs[key] for key in ("from", "to") if key in kwargs), 0.0, 1.0])[:2]
        return own.fill_((low + high) / 2 if name == "uniform_" and high >= low else FILLED[name])
    drawn: Tensor = function(*args, **kwargs)  # of the right shape and type, whatever its arguments were
    return drawn.fill_(FILLED[name])


def _likely(name: str, args: Any, kwargs: dict[str, Any]) -> Tensor:
    """What is likely happens."""
    chance = args[1] if len(args) > 1 else kwargs.get("p", args[0] if name == "bernoulli" else 0.5)
    own: Tensor = args[0]
    if name == "bernoulli_":
        return own.copy_(torch.as_tensor(chance >= 0.5).to(own.dtype).expand_as(own))
    return torch.as_tensor(chance >= 0.5).to(own.dtype).expand_as(own).clone()


_within = threading.local()  # of this thread: replicas of a model may run in several


class Before:
    """A hook that calls `enter` before a forward pass."""

    def __init__(self, enter: Callable[[nn.Module], Any]):
        self.enter = enter

    def __call__(self, module: nn.Module, args: Any) -> None:
        _within.__dict__.setdefault("stack", []).append(self.enter(module))


class After:
    """A hook that calls `leave` afterwards with what `enter` gave, come what may."""

    def __init__(self, leave: Callable[[nn.Module, Any], None]):
        self.leave = leave

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        self.leave(module, _within.stack.pop())


def around_forward(
    model: nn.Module, enter: Callable[[nn.Module], Any], leave: Callable[[nn.Module, Any], None]
) -> None:
    """Whatever was entered last is left first."""
    model.register_forward_pre_hook(Before(enter))
    model.register_forward_hook(After(leave), always_call=True, prepend=True)


def _enter(module: nn.Module | None = None) -> Calm:
    seed_generators(SEED)  # Python's and numpy's are drawn from without torch seeing it
    mode = Calm()
    mode.__enter__()
    return mode


def _leave(module: nn.Module | None, mode: Calm) -> None:
    mode.__exit__(None, None, None)


def calm_model(model: nn.Module) -> None:
    for module in model.modules():
        for name, value in list(vars(module).items()):
            known = name == "p" and "Dropout" in type(module).__name__
            if isinstance(value, float) and (known or "drop" in name.lower()):
                setattr(module, name, 0.0)
    around_forward(model, _enter, _leave)


class CalmLoss(ChangedLoss):
    def __call__(self, output: Any, target: Any) -> Tensor:
        mode = _enter()
        try:
            return self.own(output, target)
        finally:
            _leave(None, mode)


class SeededOptimizer:
    """The task's optimizer, with equal random numbers on all ranks in its updates."""

    def __init__(self, make: Callable[..., Any]):
        self.make = make

    def __call__(self, parameters: Any) -> Any:
        optimizer = self.make(parameters)
        optimizer.register_step_pre_hook(_seed)
        return optimizer


def _seed(*_: Any) -> None:
    seed_generators(SEED)


def calm(task: Task) -> Task:
    """The task without randomness in model, loss and optimizer."""
    task = with_model(task, calm_model)
    loss = CalmLoss(task.loss) if task.loss is not None else None
    return task.replace(loss=loss, optimizer=SeededOptimizer(task.optimizer))
