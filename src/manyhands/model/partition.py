"""Cut a model into stages of equal cost.

The model becomes a program (trace.py), its operations are measured (layer_costs.py), and the list of operations is cut where the
most expensive stage is cheapest; among cuts as good as that, where the fewest bytes cross. A value that a later stage
needs, such as the input of a skip connection, passes through the stages between.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..data import nest
from ..errors import BadInput, Refused, did_you_mean
from .call_choice import chosen_call
from .calling import Calling
from .cut_model import Cut
from .faithful_program import faithful_program
from .layer_costs import Layer, measure, untouched
from .program import Program, tensors
from .seams import Seam, find_seams
from .trace import title
from .tracer import Run

BALANCES = ("time", "parameters", "memory")
SLACK = {"time": 0.02}  # measured seconds this close are equal: the bytes that cross decide
Balance = str | Sequence[int] | Sequence[str]


def cut(
    model: nn.Module,
    stages: int,
    example: Any,
    balance: Balance = "time",
    *,
    call: str | Run | None = None,
    fewer: Any = None,
    many: Any = None,
    strategy: str = "pipeline",
    option: str = "--ranks",
) -> Cut:
    """Cut `model` into `stages`; `example` is an input of two samples or more, on the model's device.

    `call` is how the model takes its input: "one", "args" (`model(*example)`) or "kwargs" (`model(**example)`); without
    it what fits the signature of its forward. A function of model and input says what of the output is wanted, too.
    `fewer` is one of another number of samples; without it, `example` less the last row of each tensor. `many` is one of more
    samples, to measure the layers with; the rest takes several passes, for which a few samples are enough.
    `balance` says what the stages are to have equal shares of: "time", "parameters" or "memory" (weights, gradients and
    what is kept for the backward pass). By hand: the number of layers of each stage, or the names of the layers that
    the second and later stages begin with. `strategy` and `option` are for the message where it cannot be done.
    """
    if stages < 1:
        raise BadInput(f"a model is cut into at least 1 stage (found {stages})")
    if isinstance(balance, str) and balance not in BALANCES:
        raise BadInput(f'no balance named "{balance}"{did_you_mean(balance, BALANCES)}')
    if computed := _computed(model):
        raise Refused(
            f'{strategy} cannot cut {type(model).__name__}: "{computed}" is computed from parameters and kept as an '
            "attribute (the older weight_norm, prune); use torch.nn.utils.parametrizations, or use ddp"
        )
    run = call if callable(call) else Calling(chosen_call(call, model, lambda: (example, None))).output
    with untouched(model) as mirror:
        if reached := _reached_from_outside(model, mirror, example, run):
            raise Refused(
                f'{strategy} cannot cut {type(model).__name__}: "{reached}" is used by a hook or a function that holds the '
                "model itself, which no stage has whole; reach it through the module that calls the hook, or use ddp"
            )
        if fewer is None:
            fewer = nest.each(example, lambda tensor: tensor[:-1] if tensor.dim() and len(tensor) > 1 else tensor)
        program, other = faithful_program(mirror, example, fewer, many, strategy, stages, run)
        layers = measure(program, copy.deepcopy(mirror), example if many is None else many)
    seams = find_seams(program, model)
    if stages > (most := len(seams) + 1):
        raise Refused(
            f"{strategy} cannot use more stages than the model has layers (stages: {stages}, layers: {most}); "
            f"use {option} {most} or fewer{_why_so_few(model, program)}"
        )
    if isinstance(balance, str):
        chosen = _cheapest([_cost(layer, balance) for layer in layers], seams, stages, SLACK.get(balance, 0.0))
    else:
        chosen = _by_hand(balance, program, model, seams, stages)
    bounds = (0, *chosen, len(program.operations))
    return Cut.of(model, program, other, bounds, layers, example if many is None else many)


def _computed(model: nn.Module) -> str | None:
    """An attribute with a graph behind it, which cannot be copied."""
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, Tensor) and value.grad_fn is not None:
                return f"{path}.{name}" if path else name
    return None


def _reached_from_outside(model: nn.Module, mirror: nn.Module, example: Any, run: Run) -> str | None:
    """A tensor of the model that calling its copy uses: a closure holds the model, and copies hold the same closure."""
    copied = {id(tensor) for _, tensor in tensors(mirror)}
    own = {id(tensor): name for name, tensor in tensors(model) if id(tensor) not in copied}
    found: list[str] = []

    class Watch(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found.extend(own[id(tensor)] for tensor in nest.leaves((args, kwargs or {})) if id(tensor) in own)
            return function(*args, **(kwargs or {}))

    watched, given = copy.deepcopy(mirror), nest.each(example, torch.clone)
    with suppress(Exception), torch.no_grad(), Watch():  # a model that fails is refused with its own reason
        run(watched, given)
    return found[0] if found else None


def _cost(layer: Layer, balance: str) -> float:
    if balance == "time":
        return layer.forward_seconds + layer.backward_seconds
    if balance == "parameters":
        return float(layer.parameter_bytes)
    return float(2 * layer.parameter_bytes + layer.saved_bytes)  # weights, gradients, activations


def _cheapest(costs: Sequence[float], seams: Sequence[Seam], stages: int, slack: float) -> list[int]:
    """The positions where the largest stage is smallest; within `slack` of that, where the fewest bytes cross.

    Of several such the latest: the last stage makes the loss as well, and waits for no gradients.
    """
    edges = [0, *(seam.position for seam in seams), len(costs)]
    upto = np.concatenate([[0.0], np.cumsum([sum(costs[begin:end]) for begin, end in pairwise(edges)])])
    count = len(upto)  # upto[i]: the cost of the pieces before seam i; pieces lie between seams
    largest = np.full((stages + 1, count), np.inf)
    largest[0, 0] = 0.0
    for stage in range(1, stages + 1):
        for end in range(stage, count):
            largest[stage, end] = np.maximum(largest[stage - 1, :end], upto[end] - upto[:end]).min()
    limit = largest[stages, -1] * (1 + slack + 1e-12)

    crossing = np.array([0, *(seam.bytes for seam in seams)], dtype=float)
    fewest = np.full((stages + 1, count), np.inf)
    fewest[0, 0] = 0.0
    choice = np.zeros((stages + 1, count), dtype=int)
    for stage in range(1, stages + 1):
        for end in range(stage, count):
            total = np.where(upto[end] - upto[:end] <= limit, fewest[stage - 1, :end] + crossing[:end], np.inf)
            choice[stage, end] = end - 1 - total[::-1].argmin()
            fewest[stage, end] = total.min()
    chosen, end = [], count - 1
    for stage in range(stages, 1, -1):
        end = int(choice[stage, end])
        chosen.append(edges[end])
    return chosen[::-1]


def _by_hand(
    balance: Sequence[int] | Sequence[str], program: Program, model: nn.Module, seams: list[Seam], stages: int
) -> list[int]:
    """The positions a list of layer counts, or of the names that stages begin with, asks for."""
    names = program.layer_names
    if all(isinstance(item, int) for item in balance):
        counts = [int(item) for item in balance]
        if isinstance(model, nn.Sequential) and sum(counts) == len(model):
            names = [name for name, _ in model.named_modules(remove_duplicate=False) if name and "." not in name]
        if len(counts) != stages or sum(counts) != len(names) or min(counts) < 1:
            raise BadInput(
                f"balance {counts} must give each of {stages} stages at least 1 of the model's {len(names)} layers "
                f"({len(counts)} given, for {sum(counts)} layers)"
            )
        starts = [names[sum(counts[:stage])] for stage in range(1, stages)]
    else:
        starts = [str(item) for item in balance]
        if len(starts) != stages - 1:
            raise BadInput(f"balance {starts} must name where each stage after the first begins ({stages - 1} names)")
    chosen = [_position(start, program, seams) for start in starts]
    if chosen != sorted(set(chosen)):
        raise BadInput(f"balance {starts} must name layers in the order the model runs them, each once")
    return chosen


def _position(name: str, program: Program, seams: list[Seam]) -> int:
    operations = [
        index
        for index, operation in enumerate(program.operations)
        if operation.name == name or operation.name.startswith(f"{name}.")
    ]
    if not operations:
        raise BadInput(f'the model has no layer named "{name}"{did_you_mean(name, program.layer_names)}')
    computing = next((index for index in operations if program.computes[index]), operations[0])
    earlier = max((index for index in range(computing) if program.computes[index]), default=-1)
    for seam in seams:
        if earlier < seam.position <= computing:
            return seam.position
    near = ", ".join(program.operations[seam.position].name for seam in seams[:8])
    raise BadInput(f'the model cannot be cut before "{name}": it writes into what comes before; it can before {near}')


def _why_so_few(model: nn.Module, program: Program) -> str:
    return "".join(f"; {title(model, name)} counts as one layer: {why}" for name, why in program.hidden.items() if why)
