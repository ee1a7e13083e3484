"""torch's optimizers without torch's compiler: making or stepping one imports it, over a second, only to tell it to stay out.

Nothing is told to a compiler that is not there. Once a program has imported it, for torch.compile say, everything goes
torch's own way again. A torch that is built otherwise is left as it is, and its optimizers import the compiler as before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

COMPILER = "torch._dynamo"
_MARK = "__dynamo_disable"  # where torch keeps what it calls instead of a method, once the compiler was told
_WRAPPER = "_use_grad"  # torch's, around the `step` of most optimizers


def make_without_compiler() -> None:
    """Optimizers can be made, and their state read and loaded. What the caller sees of them is the same."""
    for method in vars(Optimizer).values():
        call_without_compiler(method)


def step_without_compiler() -> None:
    """Optimizers can be stepped, too. This replaces methods of torch's classes: for processes of our own."""
    make_without_compiler()
    for kind in {value for value in vars(torch.optim).values() if isinstance(value, type)}:
        step = vars(kind).get("step")
        if getattr(getattr(step, "__code__", None), "co_name", None) == _WRAPPER and hasattr(step, "__wrapped__"):
            setattr(kind, "step", _step(step))  # noqa: B010 (no attribute that a type checker knows)


def call_without_compiler(function: Any) -> None:
    """The same for one function, if it is one that torch hides from its compiler when it is first called."""
    plain = getattr(function, "__wrapped__", None)
    hidden = _MARK in getattr(getattr(function, "__code__", None), "co_consts", ())
    if plain is not None and hidden and not hasattr(plain, _MARK):
        setattr(plain, _MARK, _unless_there(function))


def _unless_there(function: Any) -> Callable[..., Any]:
    plain = function.__wrapped__

    def call(*args: Any, **kwargs: Any) -> Any:
        if COMPILER not in sys.modules:
            return plain(*args, **kwargs)
        if getattr(plain, _MARK, None) is call:
            delattr(plain, _MARK)
        return function(*args, **kwargs)  # tells the compiler, and leaves a mark of its own

    return call


def _step(own: Any) -> Callable[..., Any]:
    """torch's wrapper of every `step`, less the two words to the compiler."""

    def step(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        if COMPILER in sys.modules:
            return own(self, *args, **kwargs)
        before = torch.is_grad_enabled()
        torch.set_grad_enabled(self.defaults["differentiable"])
        try:
            return own.__wrapped__(self, *args, **kwargs)
        finally:
            torch.set_grad_enabled(before)

    step.__wrapped__ = own.__wrapped__  # type: ignore[attr-defined]
    step.__name__, step.__doc__ = own.__name__, own.__doc__
    return step
