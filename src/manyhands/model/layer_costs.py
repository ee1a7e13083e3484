"""What each layer of a model costs: time forward and backward, bytes of parameters and of activations."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from ..data import nest
from ..data.process_state import alone
from ..errors import BadInput, Refused
from .call_choice import chosen_call
from .calling import Calling
from .program import Operation, Program
from .trace import CannotTrace, trace

FEWEST_PASSES, LONG_SECONDS = 2, 0.5


@dataclass(frozen=True)
class Layer:
    """One layer's costs for the example it was measured with. Seconds are the least of several passes."""

    name: str
    forward_seconds: float
    backward_seconds: float
    parameter_bytes: int  # of the parameters it uses, tied ones too
    activation_bytes: int  # of its output
    saved_bytes: int  # what it keeps for the backward pass, beside parameters
    differentiable: bool  # whether its output carries a gradient


def profile(model: nn.Module, example: Any, passes: int = 5, call: str | None = None) -> list[Layer]:
    """The layers of `model`, each measured with what reaches it when `example` passes through.

    `call` is how the model takes it: "one", "args" (`model(*example)`) or "kwargs" (`model(**example)`); without it
    what fits the signature of its forward.
    Works on a copy, on the model's device: the model, its buffers, gradients and the random state stay as they were.
    """
    run = Calling(chosen_call(call, model, lambda: (example, None))).output
    with untouched(model) as mirror:
        try:
            program = trace(copy.deepcopy(mirror), example, run)
        except CannotTrace as problem:
            raise BadInput(f"{problem.module} cannot be measured layer by layer: {problem.reason}") from problem
        layers = measure(program, mirror, example, passes)
    return [layer for layer, computes in zip(layers, program.computes, strict=True) if computes]


@contextmanager
def untouched(model: nn.Module) -> Iterator[nn.Module]:
    """A copy to run on one CPU thread; the model, the random state and the number of threads stay as they were.

    One thread, because several on a busy machine wait for each other and measure that.
    """
    devices = sorted({tensor.device.index or 0 for tensor in model.parameters() if tensor.device.type == "cuda"})
    with alone(), torch.random.fork_rng(devices=devices):
        threads = torch.get_num_threads()
        try:
            torch.set_num_threads(1)
            torch.manual_seed(0)
            yield _copy(model)
        finally:
            torch.set_num_threads(threads)


def _copy(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except Exception as problem:  # a lock, an open file
        raise Refused(
            f"{type(model).__name__} cannot be copied, so it cannot be cut ({str(problem).splitlines()[0]}); "
            "make what cannot be copied in its forward, or use ddp"
        ) from problem


def measure(program: Program, model: nn.Module, example: Any, passes: int = 5) -> list[Layer]:
    """The costs of each operation of a program. Steps run one by one, each on its own small graph.

    The least of several passes counts, not the median: whatever else the machine does can only add to a time, and one
    disturbed layer would move the cut. Two are enough where they take long.
    """
    began = time.monotonic()
    last = program.readers
    for name, constant in program.constants.items():  # the trace found them in a copy of its own
        owner, _, own = name.rpartition(".")
        if not hasattr(model.get_submodule(owner), own):
            setattr(model.get_submodule(owner), own, constant)
    saved: list[int] = []
    times: list[list[tuple[float, float]]] = [[] for _ in program.operations]
    for turn in range(passes + 1):
        if turn > FEWEST_PASSES and time.monotonic() - began > LONG_SECONDS:
            break
        layers = []
        values: dict[int, Any] = dict(enumerate(nest.leaves(example)))
        for index, operation in enumerate(program.operations):
            if turn == 0:  # warms up, and looks at what is saved, which takes time
                with _saving(_parameters(operation, model)) as kept:
                    *_, result = _timed(operation, model, values)
                saved.append(sum(kept.values()))
            else:
                forward, backward, result = _timed(operation, model, values)
                times[index].append((forward, backward))
                layers.append(_layer(operation, model, result, saved[index], times[index]))
            if program.mutations:
                result = _really(operation, model, values, result)
            values[program.first + index] = result
            for number in operation.reads():
                if last[number] == index:
                    del values[number]
    return layers


@contextmanager
def _saving(parameters: list[nn.Parameter]) -> Iterator[dict[int, int]]:
    """Bytes kept for the backward pass by what runs inside, by storage, those of the parameters left out."""
    known = {parameter.untyped_storage().data_ptr() for parameter in parameters}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        for part in dense_parts(tensor):
            if (storage := part.untyped_storage()).data_ptr() not in known:
                kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        yield kept


def dense_parts(tensor: Tensor) -> list[Tensor]:
    """A tensor's memory as tensors that have one: a sparse one is made of its indices and values."""
    if tensor.layout == torch.strided:
        return [tensor]
    if tensor.layout == torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    return []


def _timed(operation: Operation, model: nn.Module, values: dict[int, Any]) -> tuple[float, float, Any]:
    """Seconds forward and backward of one operation, and its result cut off from the graph."""
    leaves: list[Tensor] = []

    def fresh(tensor: Any) -> Any:
        """A copy, because the operation may write into it; the gradient ends at the leaf before."""
        if not isinstance(tensor, Tensor) or not tensor.requires_grad:
            return tensor.clone() if isinstance(tensor, Tensor) else tensor
        leaves.append(tensor.detach().requires_grad_())
        return leaves[-1].clone()

    filled = {number: nest.over(values[number], fresh) for number in operation.reads()}
    with torch.enable_grad():
        start = _now(model)
        result = operation.run(model, filled)
        forward = _now(model) - start
    outputs = [leaf for leaf in nest.leaves(result) if leaf.requires_grad and leaf.layout == torch.strided]
    sources = [*leaves, *(parameter for parameter in _parameters(operation, model) if parameter.requires_grad)]
    backward = 0.0
    if outputs and sources:
        ones = [torch.ones_like(output) for output in outputs]
        start = _now(model)
        with suppress(
            Exception
        ):  # torch's checkpoints have operations that no gradient may come to; those cost nothing
            torch.autograd.backward(outputs, ones)  # not autograd.grad: reentrant checkpoints refuse to be part of it
        backward = _now(model) - start
        for source in sources:
            source.grad = None
    return forward, backward, nest.over(result, _cut_off)


@torch.no_grad()
def _really(operation: Operation, model: nn.Module, values: dict[int, Any], measured: Any) -> Any:
    """The operation's result once more, from the values themselves: what was measured wrote into copies of them."""
    wanted = iter([isinstance(leaf, Tensor) and leaf.requires_grad for leaf in nest.items(measured)])
    result = operation.run(model, values)
    return nest.over(result, lambda leaf: _leaf(leaf, next(wanted, False)))


def _layer(operation: Operation, model: nn.Module, result: Any, saved: int, times: list[tuple[float, float]]) -> Layer:
    tensors = list(nest.leaves(result))
    return Layer(
        name=operation.name,
        forward_seconds=min(forward for forward, _ in times),
        backward_seconds=min(backward for _, backward in times),
        parameter_bytes=sum(parameter.nbytes for parameter in _parameters(operation, model)),
        activation_bytes=sum(part.nbytes for tensor in tensors for part in dense_parts(tensor)),
        saved_bytes=saved,
        differentiable=any(tensor.requires_grad for tensor in tensors),
    )


def _parameters(operation: Operation, model: nn.Module) -> list[nn.Parameter]:
    """The parameters an operation uses, each once."""
    found = (attrgetter(name)(model) for name in sorted(operation.uses(model)))
    return list({id(item): item for item in found if isinstance(item, nn.Parameter)}.values())


def _cut_off(leaf: Any) -> Any:
    return _leaf(leaf, isinstance(leaf, Tensor) and leaf.requires_grad)


def _leaf(leaf: Any, wants_gradient: bool) -> Any:
    return leaf.detach().requires_grad_(wants_gradient) if isinstance(leaf, Tensor) else leaf


def _now(model: nn.Module) -> float:
    """The time, once the model's device has done what it was asked to."""
    first = next(model.parameters(), None)
    if first is not None and first.device.type == "cuda":
        torch.cuda.synchronize(first.device)
    return time.perf_counter()
