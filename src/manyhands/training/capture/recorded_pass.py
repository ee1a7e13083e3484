"""One batch's pass through a model in evaluation, recorded in a CUDA graph and replayed with other samples and weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ...data import nest
from .graph import CannotRecord, compare, graph_of, refusing_waits


class RecordedPass:
    """`work(input, target)` as a single launch: it gives outputs that stay until the next one, and adds to `total`.

    It is tried on a batch first, and compared with what the recording gives for it.
    """

    def __init__(self, model: nn.Module, work: Callable[[Any, Any], Any], batch: tuple[Any, Any], total: Tensor):
        device = total.device
        if not _has_room(device):
            raise CannotRecord("the device's memory is nearly full")
        self._model, self._work = model, work
        self._input, self._target = nest.each(batch, Tensor.clone)
        self._output: Any = None
        self._places = self._addresses()
        total.zero_()
        try:
            with refusing_waits():
                self._run()
        except Exception as problem:  # the ordinary pass will say it, if it is more than waiting
            raise CannotRecord(f"the pass waits for the device: {problem}") from problem
        if nest.opaque(self._output) is not None:
            raise CannotRecord("the model's output holds tensors where they cannot be reached")
        ordinary = self._found(total)
        with _generator_aside(device):
            self._replay = graph_of(self._run, device)
        total.zero_()
        self._replay()
        compare(ordinary, self._found(total))

    def __call__(self, input: Any, target: Any) -> Any:
        for into, value in zip(nest.leaves((self._input, self._target)), nest.leaves((input, target)), strict=True):
            into.copy_(value)
        self._replay()
        return self._output

    def valid(self) -> bool:
        """Whether the model's tensors are where they were recorded: loading weights may put others in their place."""
        return self._places == self._addresses()

    def _run(self) -> None:
        self._output = self._work(self._input, self._target)

    def _found(self, total: Tensor) -> list[Tensor]:
        return [tensor.clone() for tensor in (*nest.leaves(self._output), total)]

    def _addresses(self) -> list[int]:
        return [tensor.data_ptr() for tensor in (*self._model.parameters(), *self._model.buffers())]


def _has_room(device: torch.device) -> bool:
    """Whether what was used at most so far, in training steps, is there once more: a recording's memory is its own."""
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + unused >= torch.cuda.max_memory_allocated(device)


@contextmanager
def _generator_aside(device: torch.device) -> Iterator[None]:
    """A recording that breaks off spoils the generator it found; the one that training steps draw from is kept from it."""
    generator = torch.cuda.default_generators[device.index or 0]
    own = generator.graphsafe_get_state()
    generator.graphsafe_set_state(torch.Generator(device).graphsafe_get_state())
    try:
        yield
    finally:
        generator.graphsafe_set_state(own)
