"""Cut a model into stages of equal cost.

The model becomes a program (trace.py), its steps are measured (profile.py), and the list of steps is cut where the
most expensive stage is cheapest; among cuts as good as that, where the fewest bytes cross. A value that a later stage
needs, such as the input of a skip connection, passes through the stages between.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from ..data import nest
from ..errors import BadInput, Refused, did_you_mean
from .memory import Memory, memory
from .profile import Layer, measure, untouched
from .program import Program, Step, Wire, tensors
from .stage import Cut
from .trace import CannotTrace, title, trace

BALANCES = ("time", "parameters", "memory")
SLACK = {"time": 0.02}  # measured seconds this close are equal: the bytes that cross decide
Balance = str | Sequence[int] | Sequence[str]


@dataclass(frozen=True)
class Seam:
    """A place to cut: before this step, with so many bytes crossing."""

    position: int
    bytes: int


def cut(
    model: nn.Module,
    stages: int,
    example: Any,
    balance: Balance = "time",
    *,
    fewer: Any = None,
    strategy: str = "pipeline",
    option: str = "--ranks",
) -> Cut:
    """Cut `model` into `stages`; `example` is an input of two samples or more, on the model's device.

    `fewer` is one of another number of samples; without it, `example` less the last row of each tensor.
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
    with untouched(model) as mirror:
        if fewer is None:
            fewer = nest.each(example, lambda tensor: tensor[:-1] if tensor.dim() and len(tensor) > 1 else tensor)
        program, other = _faithful(mirror, example, fewer, strategy, stages)
        layers = measure(program, copy.deepcopy(mirror), example)
    seams = _seams(program, model)
    if stages > (most := len(seams) + 1):
        raise Refused(
            f"{strategy} cannot use more stages than the model has layers (stages: {stages}, layers: {most}); "
            f"use {option} {most} or fewer{_why_so_few(model, program)}"
        )
    if isinstance(balance, str):
        chosen = _cheapest([_cost(layer, balance) for layer in layers], seams, stages, SLACK.get(balance, 0.0))
    else:
        chosen = _by_hand(balance, program, model, seams, stages)
    bounds = (0, *chosen, len(program.steps))
    return _described(model, program, other, bounds, layers)


def _cost(layer: Layer, balance: str) -> float:
    if balance == "time":
        return layer.forward_seconds + layer.backward_seconds
    if balance == "parameters":
        return float(layer.parameter_bytes)
    return float(2 * layer.parameter_bytes + layer.saved_bytes)  # weights, gradients, activations


def _seams(program: Program, model: nn.Module) -> list[Seam]:
    """The places to cut, at most one between any two steps that compute something."""
    computing = [index for index, computes in enumerate(program.computes) if computes]
    closed = _closed(program, model)
    seams = []
    for before, after in pairwise(computing):
        found = []
        for position in range(before + 1, after + 1):
            wires = [Wire(value, program.forms[value]) for value in program.alive(position)]
            if position not in closed and not any(wire.stuck for wire in wires):
                found.append(Seam(position, sum(form.bytes for wire in wires for form in wire.tensors)))
        if found:
            seams.append(min(found, key=lambda seam: (seam.bytes, seam.position)))
    return seams


def _closed(program: Program, model: nn.Module) -> set[int]:
    """Where no cut may go: between a value's making and a write into it, between two users of a buffer they write."""
    closed: set[int] = set()
    for value, step in program.mutations:
        closed.update(range(max(value - program.first, -1) + 1, step + 1))
    for name in program.written:
        users = [index for index, step in enumerate(program.steps) if name in _used(step, model)]
        if users:
            closed.update(range(users[0] + 1, users[-1] + 1))
    return closed


def _used(step: Step, model: nn.Module) -> set[str]:
    """The names of the parameters and buffers a step uses."""
    found = step.attributes()
    if step.kind == "module":
        found |= {f"{step.target}.{name}" for name, _ in tensors(attrgetter(step.target)(model))}
    return found


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
    names = [step.name for step, computes in zip(program.steps, program.computes, strict=True) if computes]
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
    steps = [index for index, step in enumerate(program.steps) if step.name == name or step.name.startswith(f"{name}.")]
    if not steps:
        known = [step.name for step, computes in zip(program.steps, program.computes, strict=True) if computes]
        raise BadInput(f'the model has no layer named "{name}"{did_you_mean(name, known)}')
    computing = next((index for index in steps if program.computes[index]), steps[0])
    earlier = max((index for index in range(computing) if program.computes[index]), default=-1)
    for seam in seams:
        if earlier < seam.position <= computing:
            return seam.position
    near = ", ".join(program.steps[seam.position].name for seam in seams[:8])
    raise BadInput(f'the model cannot be cut before "{name}": it writes into what comes before; it can before {near}')


def _why_so_few(model: nn.Module, program: Program) -> str:
    return "".join(f"; {title(model, name)} counts as one layer: {why}" for name, why in program.hidden.items() if why)


def _faithful(
    model: nn.Module, example: Any, fewer: Any, strategy: str, stages: int
) -> tuple[Program, tuple[Step, ...] | None]:
    """A program that does what the model does, opened as deep as that holds, and its steps in the other mode.

    The user's own modules in a Sequential are called as they are, with all that their forward does in Python, as long
    as that leaves layers enough; they are opened only where it does not. Modules that remember something from call to
    call, other than in what they write into their parameters and buffers, stay whole.
    """
    if _packed(example) or not all(isinstance(leaf, Tensor) for leaf in nest.items(example)):
        raise Refused(f"{strategy} cannot cut {type(model).__name__}: its input must be tensors, or a nest of them")
    children = frozenset(name for name, _ in model.named_children())
    own = frozenset(
        name for name, child in model.named_modules() if name and not type(child).__module__.startswith("torch.")
    )
    kept = memory(model, example)
    if refusal := _forgotten(model, kept):
        raise Refused(f"{strategy} cannot cut {refusal}")
    attempts = [frozenset[str](), children]
    if isinstance(model, nn.Sequential) and own:
        attempts.insert(0, own)
    problems: list[CannotTrace] = []
    for whole in attempts:
        try:
            program = trace(copy.deepcopy(model), example, whole | {*kept.attributes, *kept.rebound})
            program = replace(program, written=program.written | kept.written)
            if whole == own and len(_seams(program, model)) + 1 < stages:
                continue
            _compare(model, program, example, fewer)
            return program, _other_mode(model, program, example)
        except CannotTrace as problem:
            problems.append(problem)
    first = problems[0]
    raise Refused(
        f"{strategy} cannot cut {first.module}: {first.reason}; move that into a module of its own, or use ddp"
    ) from first


def _computed(model: nn.Module) -> str | None:
    """An attribute with a graph behind it, which cannot be copied."""
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, Tensor) and value.grad_fn is not None:
                return f"{path}.{name}" if path else name
    return None


def _packed(value: Any) -> bool:
    """Whether a nest holds a packed sequence, whose tensors must stay together."""
    return isinstance(value, PackedSequence) or any(map(_packed, nest.children(value) or ()))


def _forgotten(model: nn.Module, kept: Memory) -> str | None:
    """What the model itself, which must be opened, would lose from one call to the next."""
    if "" in kept.attributes:
        return (
            f'{title(model, "")}: its forward keeps state in the attribute "{kept.attributes[""]}", which the stages '
            "would not share; make it a buffer that is written in place, move it into a module of its own, or use ddp"
        )
    if "" in kept.rebound:
        return (
            f'{title(model, "")}: its forward replaces its buffer "{kept.rebound[""]}" by another tensor; '
            "write into it (copy_, mul_, ...), or use ddp"
        )
    return None


def _other_mode(model: nn.Module, program: Program, example: Any) -> tuple[Step, ...] | None:
    """The steps in eval mode where the model is in train mode, or the reverse; None where they are not the same."""
    mirror = copy.deepcopy(model).train(not model.training)
    try:
        other = trace(mirror, example, frozenset(program.hidden))
    except CannotTrace:
        return None
    same = len(other.steps) == len(program.steps) and all(
        (one.kind, one.target, one.reads()) == (two.kind, two.target, two.reads())
        for one, two in zip(program.steps, other.steps, strict=True)
    )
    fixed = not program.constants and not other.constants
    return other.steps if same and fixed and other.output == program.output else None


def _compare(model: nn.Module, program: Program, example: Any, fewer: Any) -> None:
    """Outputs and gradients of the steps must be the model's, for the example and for fewer samples."""
    name = type(model).__name__
    whole = _described(model, program, None, (0, len(program.steps)), ())
    mirror = copy.deepcopy(model)
    stage = whole.stage(0, copy.deepcopy(model))
    parameters = dict(mirror.named_parameters())
    same_parameters = {stage.names[local]: parameter for local, parameter in stage.named_parameters()}

    def composed(input: Any) -> Any:
        return whole.assemble(stage(*whole.flatten(input)))

    expected = _behaviour(mirror, parameters, example)
    try:
        found = _behaviour(composed, same_parameters, example)
    except Exception as problem:  # it branches on whether a gradient is wanted, say, which the trace did not see
        raise CannotTrace(name, f"its steps cannot be run: {str(problem).partition(';')[0]}") from problem
    if not _close(expected, found):
        raise CannotTrace(name, "written down as steps it gives other outputs or gradients than the model")
    try:
        expected = _behaviour(mirror, parameters, fewer)
    except Exception:
        return  # the model itself cannot take so few
    try:
        same = _close(expected, _behaviour(composed, same_parameters, fewer))
    except Exception as problem:
        why = str(problem).partition(";")[0]
        raise CannotTrace(name, f"its forward depends on the number of samples: {why}") from problem
    if not same:
        raise CannotTrace(name, "its forward depends on the number of samples")


def _behaviour(run: Callable[[Any], Any], parameters: Mapping[str, nn.Parameter], input: Any) -> list[Tensor | None]:
    """Outputs, and gradients in the order of the parameters' names, of a pass with a random state of its own."""
    torch.manual_seed(0)
    output = run(nest.each(input, torch.clone))  # a forward may write into its input
    outputs = [leaf for leaf in nest.items(output) if isinstance(leaf, Tensor)]
    ends = [leaf for leaf in outputs if leaf.requires_grad]
    slopes = [torch.linspace(0.5, 1.5, end.numel(), device=end.device).view(end.shape).to(end.dtype) for end in ends]
    sources = [parameters[name] for name in sorted(parameters) if parameters[name].requires_grad]
    for source in sources:
        source.grad = None
    if ends:
        torch.autograd.backward(ends, slopes)  # not autograd.grad: reentrant checkpoints refuse to be part of it
    return [*outputs, *(source.grad for source in sources)]


def _close(expected: Sequence[Tensor | None], found: Sequence[Tensor | None]) -> bool:
    def close(one: Tensor | None, two: Tensor | None) -> bool:
        if one is None or two is None:
            return one is two
        one, two = one.to_dense(), two.to_dense()  # gradients of an embedding may be sparse
        if one.shape != two.shape or one.dtype != two.dtype:
            return False
        if not one.is_complex():
            one, two = one.float(), two.float()
        return torch.allclose(one, two, rtol=1e-4, atol=1e-6, equal_nan=True)

    return len(expected) == len(found) and all(map(close, expected, found))


def _described(
    model: nn.Module, program: Program, other: tuple[Step, ...] | None, bounds: tuple[int, ...], layers: Sequence[Layer]
) -> Cut:
    """The cut with its accounts: which stage holds which tensor of the model, under which names."""
    first: dict[int, str] = {}
    canonical = {name: first.setdefault(id(tensor), name) for name, tensor in tensors(model)}
    holders: dict[str, set[int]] = {name: set() for name in first.values()}
    for number, (begin, end) in enumerate(pairwise(bounds)):
        for step in program.steps[begin:end]:
            for name in _used(step, model):
                if name in canonical:
                    holders[canonical[name]].add(number)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    return Cut(
        model=type(model).__name__,
        program=program,
        other_mode=other,
        training=model.training,
        bounds=bounds,
        layers=tuple(layers),
        keys=tuple(model.state_dict()),
        canonical=canonical,
        holders={name: tuple(sorted(found)) or (0,) for name, found in holders.items()},
        shared={name: tuple(sorted(found)) for name, found in holders.items() if len(found) > 1 and name in trained},
        spare=tuple(name for name, origin in canonical.items() if not holders[origin]),
    )
