"""A LightningModule's steps as a model: forward(batch) is training_step, or validation_step in evaluation.

The model shares the tables of the module (parameters, buffers, modules): weights keep their names, and whatever a
strategy puts in their place is what the module computes with.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from ..data import nest
from ..errors import BadInput
from .lightning_log import Log, StandInTrainer

TABLES = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
START = ("on_validation_start", "on_validation_epoch_start")


def stepping(factory: Callable[[], nn.Module]) -> nn.Module:
    """The model of a module that is made on the rank."""
    return Stepping(prepared(factory))


def prepared(module: nn.Module | Callable[[], nn.Module], trainer: StandInTrainer | None = None) -> Any:
    """A LightningModule after the hooks that may add layers to it."""
    made: Any = module if isinstance(module, nn.Module) else module()
    with Log(made, trainer=trainer):
        made.setup("fit")
        made.configure_model()
    return made


class Stepping(nn.Module):
    """A LightningModule whose forward is its step."""

    module: Any

    def __init__(self, module: nn.Module):
        super().__init__()
        own = vars(self)  # not by setattr: names would begin with "module."
        own.update({name: getattr(module, name) for name in TABLES}, module=module, begun=False)
        own["validates"] = overrides(module, "validation_step")
        for metric in _metrics(module):
            metric.distributed_available_fn = _no_others

    def train(self, mode: bool = True) -> Stepping:
        self.module.train(mode)
        vars(self).update(training=mode, begun=False)
        return self

    def forward(self, batch: Any) -> dict[str, Any]:
        first = nest.first(batch)
        self.module.training = self.training
        if first is not None and self.module.device != first.device:
            self.module.to(first.device)
        if self.training:
            with Log(self.module):
                return {"loss": _loss(_step(self.module.training_step, batch), "training_step")}
        return self._evaluated(batch)

    def _evaluated(self, batch: Any) -> dict[str, Any]:
        """The loss of validation_step, or that of training_step where it gives none; and what was logged."""
        with Log(self.module, nest.count(batch)) as log:
            if not self.begun:
                vars(self)["begun"] = True
                _begin(self.module)
            found = _step(self.module.validation_step, batch) if self.validates else None
        if found is None or (isinstance(found, Mapping) and "loss" not in found):
            with Log(self.module):
                found = _step(self.module.training_step, batch)
        return {"loss": _loss(found, "validation_step"), "log": log}


def overrides(module: Any, name: str) -> bool:
    """Whether a module has a method of its own in the place of Lightning's."""
    return getattr(type(module), name, None) is not getattr(lightning_base(module), name, None)


def lightning_base(module: Any) -> type:
    """Lightning's class behind a module, in whichever of its two packages."""
    names = ("LightningModule", "LightningDataModule")
    found = next((base for base in type(module).__mro__ if base.__name__ in names), None)
    if found is None:
        raise BadInput(
            f"from_lightning needs a LightningModule and a LightningDataModule (found {type(module).__name__})"
        )
    return found


def _begin(module: Any) -> None:
    """An evaluation starts: torchmetrics forget the one before."""
    for metric in _metrics(module):
        metric.reset()
    for hook in START:
        getattr(module, hook)()


def _metrics(module: nn.Module) -> list[Any]:
    """The torchmetrics objects among a module's attributes."""
    return [part for part in module.modules() if hasattr(part, "distributed_available_fn")]


def _no_others() -> bool:
    """One rank evaluates all samples: its metrics must not wait for the others."""
    return False


def _step(step: Callable[..., Any], batch: Any) -> Any:
    """Call a step with a batch, and with 0 where it asks for the batch's number, which no rank knows."""
    asked = inspect.signature(step).parameters.values()
    several = len(asked) > 1 or any(item.kind is item.VAR_POSITIONAL for item in asked)
    return step(batch, 0) if several else step(batch)


def _loss(found: Any, step: str) -> Tensor:
    loss = found.get("loss") if isinstance(found, Mapping) else found
    if loss is None:
        raise BadInput(f'{step} must give the loss, alone or as "loss" of a dictionary (found {type(found).__name__})')
    return loss  # type: ignore[no-any-return]
