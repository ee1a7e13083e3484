"""Cut a model into stages of equal cost.

The model becomes a program (trace.py), its steps are measured (profile.py), and the list of steps is cut where the
most expensive stage is cheapest; among cuts as good as that, where the fewest bytes cross. A value that a later stage
needs, such as the input of a skip connection, passes through the stages between.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..errors import BadInput, Refused, did_you_mean
from .profile import Layer, measure, untouched
from .program import Program, Step, Value, Wire, held, replace
from .stage import Stage
from .trace import CannotTrace, title, trace

BALANCES = ("time", "parameters", "memory")
SLACK = {"time": 0.02}  # measured seconds this close are equal: the bytes that cross decide
Balance = str | Sequence[int] | Sequence[str]


@dataclass(frozen=True)
class Cut:
    """Where a model is cut, and what each piece costs. Holds no weights: any process can build any stage from a model.

    `holders` says which stages hold a parameter or buffer, by the first of its names in the model; `shared` are the
    trained parameters with several holders (tied weights): their gradients must be summed over those stages.
    """

    model: str
    program: Program
    other_mode: tuple[Step, ...] | None  # the same steps in the other of train and eval mode
    training: bool
    bounds: tuple[int, ...]  # the first step of each stage, and the number of steps
    layers: tuple[Layer, ...]  # the costs of each step
    keys: tuple[str, ...]  # of the model's state_dict, in order
    canonical: Mapping[str, str]  # any name of a parameter or buffer -> the first of its names
    holders: Mapping[str, tuple[int, ...]]
    shared: Mapping[str, tuple[int, ...]]

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def stage(self, number: int, model: nn.Module) -> Stage:
        """Stage `number`, made of the parts of `model`: the model that was cut, or one built the same way."""
        begin, end = self.bounds[number : number + 2]
        other = None if self.other_mode is None else self.other_mode[begin:end]
        steps = {self.training: self.program.steps[begin:end], not self.training: other}
        stage = Stage(number, steps, self.program.first + begin, self.wires(number), self.wires(number + 1))
        stage.take(model, self._parts(number))
        for name in self._constants(number):
            stage.register_buffer(name, self.program.constants[name].clone(), persistent=False)
        stage.names = {name: self.canonical[name] for name, _ in _tensors(stage) if name in self.canonical}
        for module in stage.modules():
            module.training = model.training if module is stage or type(module) is nn.Module else module.training
        return stage

    def stages(self, model: nn.Module) -> list[Stage]:
        return [self.stage(number, model) for number in range(len(self))]

    def wires(self, number: int) -> tuple[Wire, ...]:
        """What arrives at stage `number`; of the stage after the last: what the model returns."""
        position, last = self.bounds[number], self.program.readers()
        if number == 0:
            alive = list(range(self.program.first))
        else:
            alive = [value for value in sorted(last) if value < self.program.first + position and last[value] >= position]
        return tuple(Wire(value, self.program.forms[value]) for value in alive)

    def flatten(self, input: Any) -> tuple[Tensor, ...]:
        """The model's input as the tensors the first stage takes."""
        return tuple(pytree.tree_structure(self.program.inputs).flatten_up_to(input))

    def assemble(self, tensors: Sequence[Tensor]) -> Any:
        """The model's output from the tensors the last stage returns."""
        source = iter(tensors)
        values = {wire.number: wire.unpack(source) for wire in self.wires(len(self))}
        return replace(self.program.output, lambda item: values[item.number] if isinstance(item, Value) else item)

    def merge(self, parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """The whole model's state_dict, all names of tied weights included, from that of each stage in order."""
        found = {self.canonical[name]: tensor for part in reversed(parts) for name, tensor in part.items()}
        return {key: found[self.canonical[key]] for key in self.keys}

    def describe(self) -> str:
        """A table: the layers of each stage, its share of the time and of the parameters, and what goes on from it."""
        total = sum(layer.forward_seconds + layer.backward_seconds for layer in self.layers) or 1.0
        rows = [("stage", "layers", "time", "parameters", "sends")]
        for number, (begin, end) in enumerate(pairwise(self.bounds)):
            layers = [self.layers[index] for index in range(begin, end) if self.program.computes[index]]
            seconds = sum(layer.forward_seconds + layer.backward_seconds for layer in self.layers[begin:end])
            sent = sum(form.bytes for wire in self.wires(number + 1) for form in wire.tensors)
            rows.append(
                (
                    str(number),
                    f"{layers[0].name} .. {layers[-1].name} ({len(layers)})",
                    f"{100 * seconds / total:.0f} % ({1000 * seconds:.2f} ms)",
                    _bytes(sum(layer.parameter_bytes for layer in layers)),
                    _bytes(sent) if number + 1 < len(self) else f"{_bytes(sent)} (output)",
                )
            )
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)

    def _parts(self, number: int) -> list[str]:
        """The modules and tensors a stage needs; tensors that no step uses stay with the first stage."""
        begin, end = self.bounds[number : number + 2]
        steps = [*self.program.steps[begin:end], *(self.other_mode or ())[begin:end]]
        found = {step.target for step in steps if step.kind == "module"}
        found |= {name for step in steps for name in step.attributes()} - set(self.program.constants)
        if number == 0:
            found |= {name for name, first in self.canonical.items() if self.holders[first] == ()}
        return sorted(found)

    def _constants(self, number: int) -> set[str]:
        begin, end = self.bounds[number : number + 2]
        return {name for step in self.program.steps[begin:end] for name in step.attributes()} & set(self.program.constants)


def cut(
    model: nn.Module,
    stages: int,
    example: Any,
    balance: Balance = "time",
    *,
    strategy: str = "pipeline",
    option: str = "--ranks",
) -> Cut:
    """Cut `model` into `stages`; `example` is an input of two samples or more, on the model's device.

    `balance` says what the stages are to have equal shares of: "time", "parameters" or "memory" (weights, gradients and
    what is kept for the backward pass). By hand: the number of layers of each stage, or the names of the layers that
    the second and later stages begin with. `strategy` and `option` are for the message where it cannot be done.
    """
    if stages < 1:
        raise BadInput(f"a model is cut into at least 1 stage (found {stages})")
    if isinstance(balance, str) and balance not in BALANCES:
        raise BadInput(f'no balance named "{balance}"{did_you_mean(balance, BALANCES)}')
    with untouched(model) as mirror:
        program, other = _faithful(mirror, example, strategy)
        layers = measure(program, copy.deepcopy(mirror), example)
    seams = _seams(program, model)
    if stages > len(seams) + 1:
        raise Refused(
            f"{strategy} cannot use more stages than the model has layers (stages: {stages}, layers: {len(seams) + 1}); "
            f"use {option} {len(seams) + 1} or fewer{_why_so_few(model, program)}"
        )
    if isinstance(balance, str):
        chosen = _cheapest([_cost(layer, balance) for layer in layers], seams, stages, SLACK.get(balance, 0.0))
    else:
        chosen = _by_hand(balance, program, model, seams, stages)
    bounds = (0, *chosen, len(program.steps))
    return _described(model, program, other, bounds, layers)
