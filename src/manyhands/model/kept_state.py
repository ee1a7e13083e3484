"""What a forward leaves behind in its model: parameters and buffers it writes, and attributes it reads the next time.

Found by trying, on a copy: the model is called twice with the same input, weights and random state. An attribute that
is not the same after both calls (a counter, a running mean), or that made the second call give something else (a cache
of the batch before), is state. An attribute that is only set, such as attention kept for pictures, is none.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..data import nest
from ..data.process_state import seeded
from .program import tensors
from .tracer import Run

_OF_TORCH = frozenset(vars(nn.Module()))
_DEPTH = 4  # how far into objects that modules hold


@dataclass(frozen=True)
class KeptState:
    """By name: tensors of the model that its forward writes; by module: the attribute it remembers something in."""

    written: frozenset[str] = frozenset()
    rebound: dict[str, str] = field(default_factory=dict)  # module -> a buffer its forward replaces by another tensor
    attributes: dict[str, str] = field(default_factory=dict)


def kept_state(model: nn.Module, example: Any, run: Run) -> KeptState:
    """What calling `model` leaves behind. A model that cannot be called has none: others will say why."""
    try:
        mirror = copy.deepcopy(model)
    except Exception:
        return KeptState()
    _stir(mirror)
    start = {name: tensor.detach().clone() for name, tensor in tensors(mirror)}
    before = dict(tensors(mirror))
    untouched = _attributes(mirror)
    try:
        first = _call(mirror, example, run)
        once = _attributes(mirror)
        written = {name for name, tensor in tensors(mirror) if not _same(tensor.detach(), start[name])}
        rebound = {name for name, tensor in mirror.named_buffers() if tensor is not before[name]}
        _restore(mirror, start)
        second = _call(mirror, example, run)
        twice = _attributes(mirror)
    except Exception:
        return KeptState()
    changing = {key for key in twice if key not in once or not _equal(once[key], twice[key])}
    if not _equal(first, second):
        changing |= {key for key in once if key not in untouched or not _equal(untouched[key], once[key])}
    return KeptState(
        frozenset(written),
        {name.rpartition(".")[0]: name.rpartition(".")[2] for name in sorted(rebound)},
        dict(sorted(changing, reverse=True)),
    )


@torch.no_grad()
def _stir(model: nn.Module) -> None:
    """A teacher that begins as a copy of its student must not hide that it is written."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        if parameter.is_floating_point() and parameter.device.type == "cpu":
            parameter.add_(torch.randn(parameter.shape, generator=generator).to(parameter.dtype), alpha=1e-3)


def _call(model: nn.Module, example: Any, run: Run) -> list[Tensor]:
    with seeded(0):
        output = run(model, nest.each(example, torch.clone))
    return [tensor.detach().clone() for tensor in nest.leaves(output)]


@torch.no_grad()
def _restore(model: nn.Module, start: dict[str, Tensor]) -> None:
    for name, parameter in model.named_parameters():
        parameter.copy_(start[name])
    for path, module in model.named_modules():
        for name, _ in list(module.named_buffers(recurse=False, remove_duplicate=False)):
            setattr(module, name, start[f"{path}.{name}" if path else name].clone())


def _attributes(model: nn.Module) -> dict[tuple[str, str], list[Any]]:
    """What modules hold beside parameters, buffers and modules, as values that later changes do not reach."""
    known = {id(tensor) for _, tensor in tensors(model)}
    return {
        (path, name): _frozen(value, known, _DEPTH)
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if name not in _OF_TORCH
    }


def _frozen(value: Any, known: set[int], depth: int) -> list[Any]:
    """All that a value holds, in one row, the number and keys of what is inside before it."""
    if isinstance(value, Tensor):
        return [None if id(value) in known else value.detach().clone()]
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return [value]
    if isinstance(value, nn.Module) or callable(value) or not depth:
        return [None]
    inner = nest.children(value)
    if inner is None:
        try:
            inner = list(value) if hasattr(value, "__len__") else nest.attributes(value)
        except Exception:
            return [None]  # nothing to look into
    keys = map(repr, value) if isinstance(value, Mapping) else ()
    return [len(inner), *keys, *(held for item in inner for held in _frozen(item, known, depth - 1))]


def _equal(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(some) == len(others) and all(map(_same, some, others))


def _same(one: Any, two: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(two, Tensor):
        alike = one.shape == two.shape and one.dtype == two.dtype and one.layout == two.layout == torch.strided
        return alike and torch.allclose(one, two, rtol=1e-6, atol=0.0, equal_nan=True)
    return type(one) is type(two) and bool(one == two or one != one)
