"""A cut model: its stages, modules of their own with the model's parameters under the model's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from operator import attrgetter
from typing import Any

from torch import Tensor, nn

from ..data import nest
from ..errors import BadInput
from .profile import Layer
from .program import Program, Step, Value, Wire, call, replace, tensors


class Stage(nn.Module):
    """Takes the tensors that arrive from the stage before and returns those that go to the stage after.

    Its modules and parameters are those of the model it was built from, shared with it, not copied. The keys of its
    state_dict are a part of the model's; `names` leads from each to the first of its names where a tensor has several.
    """

    def __init__(
        self,
        number: int,
        steps: Mapping[bool, Sequence[Step] | None],  # by training mode; None where that mode could not be traced
        first: int,
        arriving: Sequence[Wire],
        leaving: Sequence[Wire],
    ):
        super().__init__()
        self.number = number
        self.names: dict[str, str] = {}
        self._steps, self._first, self._arriving, self._leaving = dict(steps), first, tuple(arriving), tuple(leaving)
        self._done = self._last_uses()

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        steps = self._steps[self.training]
        if steps is None:
            mode = "train" if self.training else "eval"
            raise RuntimeError(
                f"stage {self.number} was cut in another mode; its model's forward differs in {mode} mode"
            )
        source = iter(tensors)
        values: dict[int, Any] = {wire.number: wire.unpack(source) for wire in self._arriving}
        for index, (step, done) in enumerate(zip(steps, self._done, strict=True)):
            values[self._first + index] = call(step, self, values)
            for number in done:
                del values[number]
        return tuple(tensor for wire in self._leaving for tensor in wire.pack(values[wire.number]))

    def _last_uses(self) -> list[list[int]]:
        """For each step the values nobody needs after it, so that they are freed as early as in the model."""
        steps = self._steps[True] or self._steps[False] or ()
        kept = {wire.number for wire in self._leaving}
        done: list[list[int]] = []
        for index, step in reversed(list(enumerate(steps))):
            spent = (step.reads() | {self._first + index}) - kept
            done.append(sorted(spent))
            kept |= spent
        return done[::-1]

    def take(self, model: nn.Module, names: Sequence[str], constants: Mapping[str, Tensor]) -> None:
        """Hold the named modules, parameters and buffers of the model (or constants), under their names."""
        stored = set(model.state_dict())
        for name in sorted(names, key=lambda name: (name.count("."), name)):  # a module before what is in it
            item = constants[name].clone() if name in constants else attrgetter(name)(model)
            self._hold(name, item, persistent=name in stored)
        for module in self.modules():
            if module is self or type(module) is nn.Module:  # not of the model: only there to spell the names
                module.training = model.training

    def _hold(self, name: str, item: Any, persistent: bool) -> None:
        *path, last = name.split(".")
        place: nn.Module = self
        for part in path:
            if not isinstance(getattr(place, part, None), nn.Module):
                place.add_module(part, nn.Module())
            place = place.get_submodule(part)
        if getattr(place, last, None) is item:
            return
        if isinstance(item, nn.Module):
            place.add_module(last, item)
        elif isinstance(item, nn.Parameter):
            place.register_parameter(last, item)
        else:
            place.register_buffer(last, item, persistent=persistent)

    def extra_repr(self) -> str:
        return f"number={self.number}, steps={len(self._done)}"


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
    spare: tuple[str, ...]  # tensors of the model that no step uses; the first stage holds them

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def stage(self, number: int, model: nn.Module) -> Stage:
        """Stage `number`, made of the parts of `model`: the model that was cut, or one built the same way."""
        begin, end = self.bounds[number : number + 2]
        other = None if self.other_mode is None else self.other_mode[begin:end]
        steps = {self.training: self.program.steps[begin:end], not self.training: other}
        stage = Stage(number, steps, self.program.first + begin, self.wires(number), self.wires(number + 1))
        stage.take(model, self._parts(number), self.program.constants)
        stage.names = {name: self.canonical[name] for name, _ in tensors(stage) if name in self.canonical}
        return stage

    def stages(self, model: nn.Module) -> list[Stage]:
        return [self.stage(number, model) for number in range(len(self))]

    def wires(self, number: int) -> tuple[Wire, ...]:
        """What arrives at stage `number`; of the stage after the last: what the model returns."""
        return self._wires[number]

    @cached_property
    def _wires(self) -> list[tuple[Wire, ...]]:
        program = self.program
        alive = [range(program.first), *(program.alive(bound) for bound in self.bounds[1:])]
        return [tuple(Wire(value, program.forms[value]) for value in values) for values in alive]

    @property
    def writes_input(self) -> bool:
        """Whether a step writes into what the model is given."""
        return any(value < self.program.first for value, _ in self.program.mutations)

    def flatten(self, input: Any) -> tuple[Tensor, ...]:
        """The model's input as the tensors the first stage takes."""
        found = tuple(nest.leaves(input))
        if len(found) != self.program.first:
            raise BadInput(f"the model was cut for inputs of {self.program.first} tensors but got {len(found)}")
        return found

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
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        return "\n".join(line.rstrip() for line in lines)

    def _parts(self, number: int) -> list[str]:
        """The modules and tensors a stage needs; tensors that no step uses stay with the first stage."""
        begin, end = self.bounds[number : number + 2]
        steps = [*self.program.steps[begin:end], *(self.other_mode or ())[begin:end]]
        found = {step.target for step in steps if step.kind == "module"}
        found |= {name for step in steps for name in step.attributes()}
        return sorted(found | set(self.spare)) if number == 0 else sorted(found)


def _bytes(count: float) -> str:
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
