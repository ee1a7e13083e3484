"""How a task's model is called, and where its loss comes from: decided once, before the start, and kept in the record.

call      one     model(input)
          args    model(*input)     a tuple or list, for a forward that asks for several
          kwargs  model(**input)    a mapping, dataclass or named tuple whose keys are names of forward's parameters
loss      a function of output and target, or of the output alone; none: the loss that the model gives itself
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..data import nest
from ..errors import BadInput
from ..task import Task
from .call_choice import chosen_call, named, takes_output_alone
from .tracer import StandIn

Model = Callable[..., Any]


@dataclass(frozen=True)
class Calling:
    """How the model is called with an input, and how the loss is taken from what it gives."""

    call: str = "one"
    loss: Callable[..., Tensor] | None = None  # None: the output holds it
    alone: bool = False  # the loss takes the output alone

    @classmethod
    def of(cls, task: Task, model: nn.Module, example: Callable[[], tuple[Any, Any]]) -> Calling:
        """As the task says, else from the signatures and the kind of input; `example` is read only where it matters."""
        alone = task.loss is not None and takes_output_alone(task.loss)
        return cls(chosen_call(task.call, model, example), task.loss, alone)

    def output(self, model: Model, input: Any) -> Any:
        if self.call == "args":
            return model(*(nest.children(input) or [input]))
        if self.call == "kwargs":
            return model(**(named(input) or {}))
        return model(input)

    def loss_of(self, output: Any, target: Any) -> Tensor:
        if self.loss is None:
            return own_loss(output)
        return self.loss(output) if self.alone else self.loss(output, target)

    def needed(self, model: Model, input: Any) -> Any:
        """What the loss is taken from: the output, or of one that holds its loss that number alone.

        The rest of such an output may be anything (the caches of transformers, say), and nobody has a use for it.
        """
        output = self.output(model, input)
        return own_loss(output) if self.loss is None else output


def own_loss(output: Any) -> Tensor:
    """The loss that a model gives itself: `output.loss`, `output["loss"]`, or the output where it is one number."""
    shown = _example(output)
    found = output
    if isinstance(shown, Mapping):
        found = output["loss"] if "loss" in shown else None
    elif hasattr(shown, "loss"):
        found = output.loss
    elif isinstance(shown, tuple | list) and shown:
        found = output[0]
    shown = _example(found)
    if isinstance(shown, Tensor) and shown.numel() == 1:
        return found  # type: ignore[no-any-return]
    kind = type(output).__name__
    if isinstance(shown, Tensor):
        what = f"the model gives a tensor of shape {tuple(shown.shape)} where one number is needed"
    elif shown is None and output is not None:
        what = f"the model's output ({kind}) holds none; models that compute one need the labels among their inputs"
    else:
        what = f"the model's output ({kind}) holds none"
    raise BadInput(
        f'the task has no loss, and {what}; give task.loss, or return the loss as output.loss, output["loss"] or alone'
    )


def _example(value: Any) -> Any:
    """While a model is traced, what a stand-in stands for."""
    return value.tracer.values[value.node] if isinstance(value, StandIn) else value
