"""Optimizer state by parameter name: the one form in which it is stored, joined from parts and cut into parts.

    worker.state() = {"optimizer": {"state": {name: {key: value}}, "groups": [{option: value, "names": [...]}]},
                      "schedule": ..., "updates": ...}

What has the shape of its parameter is cut and joined as the parameter is; step counters and the like are the same in
every part. Where ranks share the state, `state/<key>/<name>` are its tensors in shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...model.optimizers import stand_in
from ..contract import Strategy, refuse
from ..job import Job, trained_parameters

Named = Iterable[tuple[str, nn.Parameter]]
NOT_STATE = ("params", "param_names", "fused", "foreach")  # which parameters, and how they are updated, is each rank's


def named_state(optimizer: Optimizer, named: Named) -> dict[str, Any]:
    """The optimizer's state keyed by parameter name, and the options of its groups with the names in each."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in named}
    return {
        "state": {names[parameter]: dict(state) for parameter, state in optimizer.state.items() if parameter in names},
        "groups": [
            {
                **{key: value for key, value in group.items() if key not in NOT_STATE},
                "names": [names[parameter] for parameter in group["params"]],
            }
            for group in optimizer.param_groups
        ],
    }


def load_named_state(optimizer: Optimizer, named: Named, state: Mapping[str, Any]) -> None:
    """Put state back by name; parameters held elsewhere are passed over."""
    held = dict(named)
    owner = {name: group for group in state["groups"] for name in group["names"]}
    alike = len(optimizer.param_groups) == len(state["groups"])
    for group, stored in zip(optimizer.param_groups, state["groups"] if alike else optimizer.param_groups, strict=True):
        if not group["params"]:  # of this group another rank holds everything
            group.update({key: value for key, value in stored.items() if key in group and key not in NOT_STATE})
        names = [name for name, parameter in held.items() if any(parameter is p for p in group["params"])]
        for name in names:
            if name in owner:
                group.update(
                    {key: value for key, value in owner[name].items() if key in group and key not in NOT_STATE}
                )
                break
    for name, values in state["state"].items():
        if name in held:
            parameter = held[name]
            optimizer.state[parameter] = {key: _at_home(value, parameter) for key, value in values.items()}


def _at_home(value: Any, parameter: nn.Parameter) -> Any:
    """State tensors go to their parameter's device, step counters stay on the CPU where torch keeps them.

    Fused optimizers go through memory number by number, so what is of a parameter's shape takes its strides too.
    """
    if not isinstance(value, Tensor):
        return value
    if value.dim() == 0:
        return value.clone()
    if value.shape == parameter.shape:
        return torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)
    return value.to(device=parameter.device, copy=True)


# ---------------------------------------------------------------- parts of one state


def change_state(state: Mapping[str, Any], change: Callable[[str, Any], Any]) -> dict[str, Any]:
    """A worker's state with `change(name, value)` in the place of every value."""
    optimizer = state["optimizer"]
    changed = {
        name: {key: change(name, value) for key, value in values.items()} for name, values in optimizer["state"].items()
    }
    return {**state, "optimizer": {**optimizer, "state": changed}}


def join_states(
    states: Sequence[Mapping[str, Any]], join: Callable[[str, dict[int, Any]], Any] | None = None
) -> dict[str, Any]:
    """One state from those of several workers, which all have the same groups.

    `join(name, {part: value})` makes one value of those that the parts hold; without it the first stands for all.
    """
    found: dict[str, dict[str, dict[int, Any]]] = {}
    for part, state in enumerate(states):
        for name, values in state["optimizer"]["state"].items():
            for key, value in values.items():
                found.setdefault(name, {}).setdefault(key, {})[part] = value
    joined = {
        name: {key: join(name, values) if join else next(iter(values.values())) for key, values in by_key.items()}
        for name, by_key in found.items()
    }
    groups = []
    for several in zip(*(state["optimizer"]["groups"] for state in states), strict=True):
        names = dict.fromkeys(name for group in several for name in group["names"])
        groups.append({**several[0], "names": list(names)})
    return {**states[0], "optimizer": {"state": joined, "groups": groups}}


def part_optimizer(job: Job, held: Mapping[str, nn.Parameter]) -> Optimizer:
    """The task's optimizer where a part of the model is held; groups of which nothing is held here stay, empty.

    The factory gets all named parameters, as it would under `single`, so that its groups are the same everywhere: names
    it looks for are there, and so are attributes and shapes. Those held elsewhere are without memory, and leave again.
    """
    everyone = [(name, held[name] if name in held else _absent(p)) for name, p in trained_parameters(job.model)]
    optimizer = job.task.optimizer(everyone)
    kept = {id(parameter) for parameter in held.values()}
    for group in optimizer.param_groups:
        own = [id(parameter) in kept for parameter in group["params"]]
        for parameter, keep in zip(group["params"], own, strict=True):
            if not keep:
                optimizer.state.pop(parameter, None)
        for key in ("params", "param_names"):
            if key in group:  # in place: the optimizer may have kept the list
                group[key][:] = [item for item, keep in zip(group[key], own, strict=True) if keep]
    return optimizer


def _absent(parameter: nn.Parameter) -> nn.Parameter:
    """The same shape and attributes, and memory for one number."""
    return stand_in(parameter, torch.zeros((), dtype=parameter.dtype, device=parameter.device).expand(parameter.shape))


# ---------------------------------------------------------------- state that all ranks share


def shareable_state(strategy: Strategy, job: Job) -> dict[str, Tensor]:
    """The optimizer's state as it is before the first update, found by one update of zeros with zeros."""
    named = [(name, nn.Parameter(torch.zeros_like(p, device="cpu"))) for name, p in trained_parameters(job.model)]
    optimizer = job.task.optimizer(named)
    before = {name: set(optimizer.state.get(parameter, {})) for name, parameter in named}
    for _, parameter in named:
        parameter.grad = torch.zeros_like(parameter)
    kind = type(optimizer).__name__
    try:
        optimizer.step()
    except Exception as problem:
        raise refuse(strategy, f"cannot share the state of {kind} ({problem}); use optimizer=rank") from problem
    shared = {}
    for name, parameter in named:
        for key, value in optimizer.state.get(parameter, {}).items():
            if not isinstance(value, Tensor):
                if value is None:
                    continue
                raise refuse(strategy, f"cannot share the state of {kind} ({key} is not a tensor); use optimizer=rank")
            if key == "step":
                value = torch.zeros_like(value)
            elif key not in before[name] and bool(value.count_nonzero()):
                raise refuse(
                    strategy, f"cannot share the state of {kind} ({key} does not start at zero); use optimizer=rank"
                )
            shared[f"state/{key}/{name}"] = value
    return shared


def use_shared_state(optimizer: Optimizer, named: Named, shared: Mapping[str, Tensor]) -> None:
    """Let an optimizer work on state in shared memory; what it has loaded goes there first."""
    held = dict(named)
    for label, tensor in shared.items():
        kind, _, rest = label.partition("/")
        if kind == "state":
            key, _, name = rest.partition("/")
            own = optimizer.state[held[name]]
            if isinstance(own.get(key), Tensor) and own[key] is not tensor:
                tensor.copy_(own[key])
            own[key] = tensor
