"""A stage: a piece of a cut model, a module of its own with the model's parameters under the model's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from torch import Tensor, nn

from .program import Operation, Wire


class Stage(nn.Module):
    """Takes the tensors that arrive from the stage before and returns those that go to the stage after.

    Its modules and parameters are those of the model it was built from, shared with it, not copied. The keys of its
    state_dict are a part of the model's; `names` leads from each to the first of its names where a tensor has several.
    """

    def __init__(
        self,
        number: int,
        modes: Mapping[bool, Sequence[Operation] | None],  # by training mode; None where it could not be traced
        first: int,
        arriving: Sequence[Wire],
        leaving: Sequence[Wire],
    ):
        super().__init__()
        self.number = number
        self.names: dict[str, str] = {}
        self._modes, self._first, self._arriving, self._leaving = dict(modes), first, tuple(arriving), tuple(leaving)
        self._done = self._last_uses()

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        operations = self._modes[self.training]
        if operations is None:
            mode = "train" if self.training else "eval"
            raise RuntimeError(
                f"stage {self.number} was cut in another mode; its model's forward differs in {mode} mode"
            )
        source = iter(tensors)
        values: dict[int, Any] = {wire.number: wire.unpack(source) for wire in self._arriving}
        for index, (operation, done) in enumerate(zip(operations, self._done, strict=True)):
            values[self._first + index] = operation.run(self, values)
            for number in done:
                del values[number]
        return tuple(tensor for wire in self._leaving for tensor in wire.pack(values[wire.number]))

    def _last_uses(self) -> list[list[int]]:
        """For each operation the values nobody needs after it, so that they are freed as early as in the model."""
        operations = self._modes[True] or self._modes[False] or ()
        kept = {wire.number for wire in self._leaving}
        done: list[list[int]] = []
        for index, operation in reversed(list(enumerate(operations))):
            spent = (operation.reads() | {self._first + index}) - kept
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
        return f"number={self.number}, operations={len(self._done)}"
