"""An exponential average of the weights (`task.ema`), kept beside the optimizer of whatever a process holds.

    after the first update   average = weights
    after every other        average = decay * average + (1 - decay) * weights

as torch's AveragedModel with get_ema_multi_avg_fn has it. Of 16-bit weights the average is kept in 32 bits: steps of a
thousandth would be lost to rounding. In a worker's state it is the entry `ema` of its parameter, cut and joined with
the optimizer's own: so it goes on under any strategy that reads the checkpoint. The optimizer never sees it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

KEY = "ema"
State = dict[str, dict[str, Any]]  # of an optimizer, by parameter name


class Average:
    """The average of these parameters. It moves on with the schedule: once per step where ranks make updates of their own."""

    def __init__(self, decay: float, named: Sequence[tuple[str, nn.Parameter]]):
        self.named, self.values = list(named), dict[str, Tensor]()
        self.begun = False
        self._move = get_ema_multi_avg_fn(decay)

    @torch.no_grad()
    def update(self) -> None:
        """Take the weights of an update in."""
        weights = [_precise(parameter.detach()) for _, parameter in self.named]
        if not self.values:
            self.values = {name: torch.clone(weight) for (name, _), weight in zip(self.named, weights, strict=True)}
        elif not self.begun:
            for value, weight in zip(self.values.values(), weights, strict=True):
                value.copy_(weight)
        elif weights:
            self._move(list(self.values.values()), weights, 1)
        self.begun = True

    def joined(self, state: State) -> State:
        """An optimizer's state by name, with the average in it."""
        names = dict.fromkeys([*state, *self.values])
        return {
            name: {**state.get(name, {}), **({KEY: self.values[name]} if name in self.values else {})} for name in names
        }

    def load(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Go on from a state; one without an average lets it begin with the next update."""
        self.begun = any(KEY in state.get(name, {}) for name, _ in self.named)
        self.values = {}
        for name, parameter in self.named if self.begun else []:
            own = torch.empty_like(_precise(parameter.detach()))
            self.values[name] = own.copy_(state.get(name, {}).get(KEY, parameter.detach()))


def without_average(state: Mapping[str, Mapping[str, Any]]) -> State:
    """What of a state is the optimizer's own."""
    return {name: {key: value for key, value in values.items() if key != KEY} for name, values in state.items()}


def holds_average(state: Mapping[str, Any]) -> bool:
    """Whether a worker's state has an average in it."""
    return any(KEY in values for values in state["optimizer"]["state"].values())


def _precise(weight: Tensor) -> Tensor:
    return weight.float() if weight.dtype in (torch.float16, torch.bfloat16) else weight
