"""A cut model: where its stages begin and end, what each holds, and what goes from one to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from torch import Tensor, nn

from ..data import nest
from ..errors import BadInput
from .layer_costs import Layer
from .program import Operation, Program, Value, Wire, tensors
from .stage import Stage


@dataclass(frozen=True)
class Cut:
    """Where a model is cut, and what each piece costs. Holds no weights: any process can build any stage from a model.

    `holders` says which stages hold a parameter or buffer, by the first of its names in the model; `shared` are the
    trained parameters with several holders (tied weights): their gradients must be summed over those stages.
    """

    model: str
    program: Program
    other_mode: tuple[Operation, ...] | None  # the same operations in the other of train and eval mode
    training: bool
    bounds: tuple[int, ...]  # the first operation of each stage, and the number of operations
    layers: tuple[Layer, ...]  # the costs of each operation
    keys: tuple[str, ...]  # of the model's state_dict, in order
    canonical: Mapping[str, str]  # any name of a parameter or buffer -> the first of its names
    holders: Mapping[str, tuple[int, ...]]
    shared: Mapping[str, tuple[int, ...]]
    spare: tuple[str, ...]  # tensors of the model that no operation uses; the first stage holds them
    samples: int = 1  # that the costs of layers were measured with
    fixed: tuple[Any, ...] = ()  # what the input holds beside tensors (None, numbers, strings), the same in every one

    @classmethod
    def of(
        cls,
        model: nn.Module,
        program: Program,
        other_mode: tuple[Operation, ...] | None,
        bounds: tuple[int, ...],
        layers: Sequence[Layer],
        example: Any = None,
    ) -> Cut:
        """With its accounts: which stage holds which tensor of the model, under which names."""
        first: dict[int, str] = {}
        canonical = {name: first.setdefault(id(tensor), name) for name, tensor in tensors(model)}
        holders: dict[str, set[int]] = {name: set() for name in first.values()}
        for number, (begin, end) in enumerate(pairwise(bounds)):
            for operation in program.operations[begin:end]:
                for name in operation.uses(model):
                    if name in canonical:
                        holders[canonical[name]].add(number)
        trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
        return cls(
            model=type(model).__name__,
            program=program,
            other_mode=other_mode,
            training=model.training,
            bounds=bounds,
            layers=tuple(layers),
            keys=tuple(model.state_dict()),
            canonical=canonical,
            holders={name: tuple(sorted(found)) or (0,) for name, found in holders.items()},
            shared={name: tuple(sorted(at)) for name, at in holders.items() if len(at) > 1 and name in trained},
            spare=tuple(name for name, origin in canonical.items() if not holders[origin]),
            samples=nest.count(example) or 1,
            fixed=_beside_tensors(list(nest.items(example))),
        )

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def stage(self, number: int, model: nn.Module) -> Stage:
        """Stage `number`, made of the parts of `model`: the model that was cut, or one built the same way."""
        begin, end = self.bounds[number : number + 2]
        other = None if self.other_mode is None else self.other_mode[begin:end]
        operations = {self.training: self.program.operations[begin:end], not self.training: other}
        stage = Stage(number, operations, self.program.first + begin, self.wires(number), self.wires(number + 1))
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
        """Whether an operation writes into what the model is given."""
        return any(value < self.program.first for value, _ in self.program.mutations)

    def flatten(self, input: Any) -> tuple[Tensor, ...]:
        """The model's input as the tensors the first stage takes."""
        leaves = list(nest.items(input))
        found = tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))
        if len(found) != self.program.first:
            raise BadInput(f"the model was cut for inputs of {self.program.first} tensors but got {len(found)}")
        if len(leaves) > len(found) and (beside := _beside_tensors(leaves)) != self.fixed:
            raise BadInput(
                f"the model was cut for inputs with {self.fixed} beside their tensors but got {beside}; "
                "give what changes as a tensor"
            )
        return found

    def assemble(self, tensors: Sequence[Tensor]) -> Any:
        """The model's output from the tensors the last stage returns."""
        source = iter(tensors)
        values = {wire.number: wire.unpack(source) for wire in self.wires(len(self))}
        return nest.over(self.program.output, lambda item: values[item.number] if isinstance(item, Value) else item)

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
        """The modules and tensors a stage needs; tensors that no operation uses stay with the first stage."""
        begin, end = self.bounds[number : number + 2]
        operations = [*self.program.operations[begin:end], *(self.other_mode or ())[begin:end]]
        found = {operation.target for operation in operations if operation.kind == "module"}
        found |= {name for operation in operations for name in operation.attributes()}
        return sorted(found | set(self.spare)) if number == 0 else sorted(found)


def _beside_tensors(leaves: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(leaf for leaf in leaves if not isinstance(leaf, Tensor))


def _bytes(count: float) -> str:
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
