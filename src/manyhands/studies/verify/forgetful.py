"""A model and a loss that keep nothing from one batch to the next."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from torch import Tensor, nn

from ...model.torch_internals import BATCHNORMS
from ...task import Task
from ...world.launch.by_value import by_value_copy
from .calm import around_forward
from .variants import ChangedLoss, with_model

KEPT = (int, float, str, list, dict, set, tuple, Tensor)  # and what is of these; modules and parameters are none
HIDDEN = ("training", "T_destination", "call_super_init", "dump_patches")


class Memory:
    """What the modules of a model held before the first forward pass, put back after each."""

    def __init__(self) -> None:
        self.before: list[tuple[dict[str, Any], dict[str, Any]]] | None = None

    def note(self, model: nn.Module) -> None:
        if self.before is None:
            self.before = [(_copied(module._buffers), _copied(_attributes(module))) for module in _modules(model)]

    def put_back(self, model: nn.Module, _: Any) -> None:
        assert self.before is not None
        for module, (buffers, attributes) in zip(_modules(model), self.before, strict=True):
            module._buffers.update(_copied(buffers))
            for name in _attributes(module).keys() - attributes.keys():
                vars(module).pop(name)
            vars(module).update(_copied(attributes))


def _modules(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if not isinstance(module, BATCHNORMS)]


def _attributes(module: nn.Module) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("__") and name not in nn.Module().__dict__ and name not in HIDDEN and _plain(value)
    }


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, KEPT) or type(value).__module__ in ("collections", "numpy")


def _copied(values: dict[str, Any]) -> dict[str, Any]:
    """Copies, as far as there can be some: a tensor of a graph that was computed cannot be copied whole."""
    return {
        name: value.detach().clone() if isinstance(value, Tensor) else deepcopy(value) for name, value in values.items()
    }


def forget(model: nn.Module) -> None:
    memory = Memory()
    around_forward(model, memory.note, memory.put_back)


class FreshLoss(ChangedLoss):
    """A copy of the loss for every call, closures and their variables included."""

    def __init__(self, loss: Any):
        super().__init__(loss)
        self.untouched = loss

    def own(self, output: Any, target: Any) -> Tensor:
        self.loss = by_value_copy(self.untouched)
        return super().own(output, target)


def forgetful(task: Task) -> Task:
    task = with_model(task, forget)
    return task if task.loss is None else task.replace(loss=FreshLoss(task.loss))
