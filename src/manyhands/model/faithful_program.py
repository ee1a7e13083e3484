"""A program that does what its model does: the trace is compared with the model before anything is cut by it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..data import nest
from ..errors import Refused
from .cut_model import Cut
from .kept_state import KeptState, kept_state
from .program import Operation, Program, Stuck, form
from .seams import find_seams
from .trace import CannotTrace, title, trace
from .tracer import Run


def faithful_program(
    model: nn.Module, example: Any, fewer: Any, many: Any, strategy: str, stages: int, run: Run
) -> tuple[Program, tuple[Operation, ...] | None]:
    """A program that does what the model does, opened as deep as that holds, and its operations in the other mode.

    The user's own modules in a Sequential are called as they are, with all that their forward does in Python, as long
    as that leaves layers enough; they are opened only where it does not. Modules that remember something from call to
    call, other than in what they write into their parameters and buffers, stay whole.
    """
    if stuck := next((leaf for leaf in nest.items(form(example)) if isinstance(leaf, Stuck)), None):
        raise Refused(
            f"{strategy} cannot cut {type(model).__name__}: its input must be a nest of tensors, numbers, strings and "
            f"None (found a {stuck.kind}); use ddp"
        )
    children = frozenset(name for name, _ in model.named_children())
    own = frozenset(
        name for name, child in model.named_modules() if name and not type(child).__module__.startswith("torch.")
    )
    kept = kept_state(model, example, run)
    if refusal := _forgotten(model, kept):
        raise Refused(f"{strategy} cannot cut {refusal}")
    attempts = [frozenset[str](), children]
    if isinstance(model, nn.Sequential) and own:
        attempts.insert(0, own)
    problems: list[CannotTrace] = []
    for whole in attempts:
        try:
            program = trace(copy.deepcopy(model), example, run, whole | {*kept.attributes, *kept.rebound})
            program = replace(program, written=program.written | kept.written)
            if own and whole == own and len(find_seams(program, model)) + 1 < stages:
                continue
            _compare(model, program, example, fewer, many, run)
            return program, _other_mode(model, program, example, run)
        except CannotTrace as problem:
            problems.append(problem)
    first = problems[0]
    raise Refused(
        f"{strategy} cannot cut {first.module}: {first.reason}; move that into a module of its own, or use ddp"
    ) from first


def _forgotten(model: nn.Module, kept: KeptState) -> str | None:
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


def _other_mode(model: nn.Module, program: Program, example: Any, run: Run) -> tuple[Operation, ...] | None:
    """The operations in eval mode where the model is in train mode, or the reverse; None where they are not the same."""
    mirror = copy.deepcopy(model).train(not model.training)
    try:
        other = trace(mirror, example, run, frozenset(program.hidden))
    except CannotTrace:
        return None
    same = len(other.operations) == len(program.operations) and all(
        (one.kind, one.target, one.reads()) == (two.kind, two.target, two.reads())
        for one, two in zip(program.operations, other.operations, strict=True)
    )
    fixed = not program.constants and not other.constants
    return other.operations if same and fixed and other.output == program.output else None


def _compare(model: nn.Module, program: Program, example: Any, fewer: Any, many: Any, run: Run) -> None:
    """Outputs and gradients of the operations must be the model's, for the example and for fewer samples; outputs for many."""
    name = type(model).__name__
    whole = Cut.of(model, program, None, (0, len(program.operations)), (), example)
    mirror = copy.deepcopy(model)
    stage = whole.stage(0, copy.deepcopy(model))
    parameters = dict(mirror.named_parameters())
    same_parameters = {stage.names[local]: parameter for local, parameter in stage.named_parameters()}

    def composed(input: Any) -> Any:
        return whole.assemble(stage(*whole.flatten(input)))

    def itself(input: Any) -> Any:
        return run(mirror, input)

    expected = _behaviour(itself, parameters, example)
    try:
        found = _behaviour(composed, same_parameters, example)
    except Exception as problem:  # it branches on whether a gradient is wanted, say, which the trace did not see
        raise CannotTrace(name, f"its steps cannot be run: {str(problem).partition(';')[0]}") from problem
    if not _close(expected, found):
        raise CannotTrace(name, "written down as steps it gives other outputs or gradients than the model")
    for input, behaviour in ((fewer, _behaviour), *(() if many is None else ((many, _outputs),))):
        try:
            expected = behaviour(itself, parameters, input)
        except Exception:
            continue  # the model itself cannot take so many
        try:
            same = _close(expected, behaviour(composed, same_parameters, input))
        except Exception as problem:
            why = str(problem).partition(";")[0]
            raise CannotTrace(name, f"its forward depends on the number of samples: {why}") from problem
        if not same:
            raise CannotTrace(name, "its forward depends on the number of samples")


def _behaviour(run: Callable[[Any], Any], parameters: Mapping[str, nn.Parameter], input: Any) -> list[Tensor | None]:
    """Outputs, and gradients in the order of the parameters' names, of a pass with a random state of its own."""
    torch.manual_seed(0)
    output = run(nest.each(input, torch.clone))  # a forward may write into its input
    outputs = list(nest.leaves(output))
    ends = [leaf for leaf in outputs if leaf.requires_grad and leaf.layout == torch.strided]
    slopes = [torch.linspace(0.5, 1.5, end.numel(), device=end.device).view(end.shape).to(end.dtype) for end in ends]
    sources = [parameters[name] for name in sorted(parameters) if parameters[name].requires_grad]
    for source in sources:
        source.grad = None
    if ends:
        torch.autograd.backward(ends, slopes)  # not autograd.grad: reentrant checkpoints refuse to be part of it
    return [*outputs, *(source.grad for source in sources)]


@torch.no_grad()
def _outputs(run: Callable[[Any], Any], parameters: Mapping[str, nn.Parameter], input: Any) -> list[Tensor | None]:
    torch.manual_seed(0)
    return list(nest.leaves(run(nest.each(input, torch.clone))))


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
