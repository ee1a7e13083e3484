"""An optimizer or a schedule that was made for one model, taken apart so that it can be made again on every rank.

An optimizer becomes its class, the options of its groups, and the names of the parameters in each. A schedule becomes a
copy of itself without its optimizer; the copy of that copy is given another one, whatever kind of schedule it is.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from ..errors import BadInput

NOT_OPTIONS = ("params", "param_names")
NOT_ARGUMENTS = ("self", "params")
OPEN = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True)
class OptimizerParts:
    """What makes an optimizer again for parameters of the same names."""

    kind: type[Optimizer]
    arguments: Mapping[str, Any]
    groups: tuple[tuple[frozenset[str], Mapping[str, Any]], ...]  # names, options

    def __call__(self, named: Iterable[tuple[str, nn.Parameter]]) -> Optimizer:
        everyone = list(named)
        return self.kind(
            [
                {**copy.deepcopy(dict(options)), "params": [value for name, value in everyone if name in names]}
                for names, options in self.groups
            ],
            **self.arguments,
        )


def optimizer_parts(optimizer: Optimizer, model: nn.Module, scheduled: bool) -> OptimizerParts:
    """Take an optimizer of this model's parameters apart. `scheduled`: the schedule that it has comes along."""
    kind = type(optimizer)
    advice = f"give a function that makes it: optimizer=functools.partial({kind.__name__}, lr=...)"
    if any(optimizer.state.values()):
        raise BadInput(
            f"the {kind.__name__} has made updates already, and what it remembers of them would be lost; "
            "make a new one for this fit"
        )
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    groups = []
    for group in optimizer.param_groups:
        if any(parameter not in names for parameter in group["params"]):
            raise BadInput(
                f"the {kind.__name__} holds parameters that are not the model's; give the model whose parameters it was "
                "made with, or " + advice
            )
        if "initial_lr" in group and not scheduled:
            raise BadInput(
                f"the {kind.__name__} has a learning rate schedule that was not given; give it as schedule=..., or make "
                "the optimizer without one"
            )
        options = {key: copy.deepcopy(value) for key, value in group.items() if key not in NOT_OPTIONS}
        groups.append((frozenset(names[parameter] for parameter in group["params"]), options))
    return OptimizerParts(kind, _arguments(optimizer, advice), tuple(groups))


def _arguments(optimizer: Optimizer, advice: str) -> dict[str, Any]:
    """What its constructor was given, as far as its defaults tell."""
    asked = inspect.signature(type(optimizer).__init__).parameters
    for name, item in list(asked.items())[2:]:
        if item.default is item.empty and item.kind not in OPEN and name not in optimizer.defaults:
            raise BadInput(f'{type(optimizer).__name__} does not say what its "{name}" was; {advice}')
    return {name: value for name, value in optimizer.defaults.items() if name in asked and name not in NOT_ARGUMENTS}


class _NoOptimizer:
    """Stands where a schedule's optimizer was."""


@dataclass(frozen=True)
class ScheduleParts:
    """A schedule without its optimizer. It moves on after every `every` updates, or epochs."""

    schedule: LRScheduler
    nobody: _NoOptimizer
    every: int
    per_epoch: bool

    def __call__(self, optimizer: Optimizer, total_updates: int) -> Any:
        rates = [group["lr"] for group in optimizer.param_groups]
        LambdaLR(optimizer, lambda _: 1.0)  # only prepares the optimizer for schedules, and sets the rate
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        made = copy.deepcopy(self.schedule, {id(self.nobody): optimizer})
        if isinstance(made, ReduceLROnPlateau):
            return made
        if self.per_epoch:
            return EveryEpochs(made, self.every)
        return made if self.every == 1 else EveryUpdates(made, self.every)


def schedule_parts(
    schedule: LRScheduler, optimizer: Optimizer, every: int = 1, per_epoch: bool = False
) -> ScheduleParts:
    """Take a schedule of this optimizer apart."""
    kind = type(schedule).__name__
    if schedule.optimizer is not optimizer:
        raise BadInput(f"the {kind} is of another optimizer than the one given; give the two that belong together")
    moved = getattr(schedule, "last_epoch", 0)  # several in a chain count for themselves
    if moved > 0:
        raise BadInput(f"the {kind} has moved on already (steps: {moved}); make a new one for this fit")
    nobody = _NoOptimizer()
    return ScheduleParts(copy.deepcopy(schedule, {id(optimizer): nobody}), nobody, every, per_epoch)


class EveryUpdates:
    """A schedule that moves on after every so many updates."""

    def __init__(self, schedule: LRScheduler, every: int):
        self.schedule, self.every, self.done = schedule, every, 0

    def step(self) -> None:
        self.done += 1
        if self.done % self.every == 0:
            self.schedule.step()

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done, "schedule": self.schedule.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.done = int(state["done"])
        self.schedule.load_state_dict(dict(state["schedule"]))


class EveryEpochs:
    """The same after every so many epochs: a schedule that asks for a figure is given an epoch's loss, after each."""

    def __init__(self, schedule: LRScheduler, every: int):
        self.inner = EveryUpdates(schedule, every)
        self.state_dict, self.load_state_dict = self.inner.state_dict, self.inner.load_state_dict

    def step(self, loss: float) -> None:
        self.inner.step()
