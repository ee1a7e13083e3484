"""Optimizer state by parameter name: the one form in which it is stored, joined and cut."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

NOT_STATE = ("params", "param_names", "fused", "foreach")  # which parameters, and how they are updated, is each rank's


def named_state(optimizer: Optimizer, named: Iterable[tuple[str, nn.Parameter]]) -> dict[str, Any]:
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


def load_named_state(optimizer: Optimizer, named: Iterable[tuple[str, nn.Parameter]], state: Mapping[str, Any]) -> None:
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
