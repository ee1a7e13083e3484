"""A stage: a piece of a cut model as a module of its own, with the model's parameters under the model's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from torch import Tensor, nn

from .program import Step, Wire, call


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
            raise RuntimeError(f"stage {self.number}: the model's forward takes another way in {mode} mode; cut it in that mode")
        source = iter(tensors)
        values: dict[int, Any] = {wire.number: wire.unpack(source) for wire in self._arriving}
        for index, (step, done) in enumerate(zip(steps, self._done, strict=True)):
            values[self._first + index] = call(step, self, lambda value: values[value.number])
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

    def take(self, model: nn.Module, names: Sequence[str]) -> None:
        """Hold the named modules, parameters and buffers of the model, under their names."""
        stored = set(model.state_dict())
        for name in sorted(names, key=lambda name: (name.count("."), name)):  # a module before what is in it
            self._hold(name, attrgetter(name)(model), persistent=name in stored)

    def _hold(self, name: str, item: Any, persistent: bool) -> None:
        *path, last = name.split(".")
        place: nn.Module = self
        for part in path:
            if part not in place._modules:
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
