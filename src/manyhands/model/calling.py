"""How a task's model is called, and where its loss comes from: decided once, before the start, and said in the record.

call      one     model(input)
          args    model(*input)     a tuple or list, for a forward that asks for several
          kwargs  model(**input)    a mapping whose keys are names of forward's parameters
loss      a function of output and target, or of the output alone; none: the loss that the model gives itself
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..data import nest
from ..errors import BadInput
from ..task import Task

Parameter = inspect.Parameter
POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True)
class Calling:
    """How the model is called with an input, and how the loss is taken from what it gives."""

    call: str = "one"
    loss: Callable[..., Tensor] | None = None  # None: the output holds it
    alone: bool = False  # the loss takes the output alone

    @classmethod
    def of(cls, task: Task, model: nn.Module, example: Callable[[], tuple[Any, Any]]) -> Calling:
        """As the task says, else from the signatures and the kind of input; `example` is read only where it matters."""
        return cls(task.call or _call_for(model, example), task.loss, task.loss is not None and _takes_one(task.loss))

    def output(self, model: Callable[..., Any], input: Any) -> Any:
        if self.call == "args":
            return model(*(nest.children(input) or [input]))
        if self.call == "kwargs":
            return model(**input)
        return model(input)

    def loss_of(self, output: Any, target: Any) -> Tensor:
        if self.loss is None:
            return own_loss(output)
        return self.loss(output) if self.alone else self.loss(output, target)


def own_loss(output: Any) -> Tensor:
    """The loss that a model gives itself: `output.loss`, `output["loss"]`, or the output where it is one number."""
    found = output
    if isinstance(output, Mapping):
        found = output.get("loss")
    elif hasattr(output, "loss"):
        found = output.loss
    elif isinstance(output, tuple | list) and output:
        found = output[0]
    if isinstance(found, Tensor) and found.numel() == 1:
        return found
    raise BadInput(
        f"the task has no loss, and the model's output holds none (found {type(output).__name__}); "
        'give task.loss, or return the loss as output.loss, output["loss"] or alone'
    )


def _takes_one(loss: Callable[..., Any]) -> bool:
    """Whether a loss can be given the output only."""
    positional = _positional(loss)
    return positional is not None and len(positional) == 1


def _call_for(model: nn.Module, example: Callable[[], tuple[Any, Any]]) -> str:
    found = _parameters(model.forward)
    if found is None or [item.kind in POSITIONAL for item in found] == [True]:
        return "one"
    try:
        input, _ = example()
    except Exception:  # refused by the probe, or named by a rank
        return "one"
    required = [item for item in found if item.kind in POSITIONAL and item.default is Parameter.empty]
    if isinstance(input, Mapping):
        names = {item.name for item in found}
        any_name = any(item.kind is Parameter.VAR_KEYWORD for item in found)
        missing = {item.name for item in required} - set(input)
        return "kwargs" if not missing and (any_name or set(input) <= names) else "one"
    if isinstance(input, tuple | list):
        several = any(item.kind is Parameter.VAR_POSITIONAL for item in found) or len(required) > 1
        return "args" if several else "one"
    return "one"


def _positional(function: Callable[..., Any]) -> list[Parameter] | None:
    """The parameters that a call may fill by place; None where their number is open or unknown."""
    inner = function.forward if isinstance(function, nn.Module) else function
    found = _parameters(inner)
    if found is None or any(item.kind is Parameter.VAR_POSITIONAL for item in found):
        return None
    return [item for item in found if item.kind in POSITIONAL]


def _parameters(function: Callable[..., Any]) -> list[Parameter] | None:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None
