"""Units: the blocks of a model whose parameters may be gathered and dropped on their own.

A block is a module of at least a given size: the members of the model's lists and sequences where they are that
large, else its own large children. Two kinds stay with the whole model: blocks that share a parameter with another,
and blocks whose parameters are used while the block itself is not running, or whose output is an object of its own kind
(a trial on two samples shows it).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..data import nest
from .torch_internals import TREE_LEAVES


def find_units(model: nn.Module, least: int, trial: Callable[[nn.Module], Any]) -> list[str]:
    """Names of the units of at least `least` bytes; `trial` runs the model once. A trial that fails gives no unit."""
    units = [name for name in _blocks(model, least) if not _shares(model, name)]
    if not units or TREE_LEAVES.found is None:
        return []
    try:
        strays = _used_outside(model, units, trial)
    except Exception:
        return []
    return [name for name in units if name not in strays]


def _blocks(module: nn.Module, least: int, path: str = "") -> list[str]:
    found: list[str] = []
    for name, child in module.named_children():
        own = f"{path}{name}"
        repeats = any(isinstance(inner, nn.ModuleList) for inner in child.modules())
        inside = _blocks(child, least, f"{own}.") if repeats or isinstance(child, nn.Sequential) else []
        if len(inside) > 1 or isinstance(child, nn.ModuleList | nn.ModuleDict):
            found += inside
        elif _size(child) >= max(least, 1):
            found.append(own)
    return found


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())


def _shares(model: nn.Module, name: str) -> bool:
    """Whether a parameter of the block is used under a name outside of it too."""
    uses = Counter(id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False))
    own = Counter(id(parameter) for _, parameter in model.get_submodule(name).named_parameters(remove_duplicate=False))
    return any(uses[key] != number for key, number in own.items())


def _used_outside(model: nn.Module, units: list[str], trial: Callable[[nn.Module], Any]) -> set[str]:
    """Units whose parameters some operation took while the unit was not running, or whose output hides its tensors."""
    owner = {id(parameter): name for name in units for parameter in model.get_submodule(name).parameters()}
    running: Counter[str] = Counter()
    strays: set[str] = set()

    class Watch(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            for tensor in nest.leaves((args, kwargs or {})):
                unit = owner.get(id(tensor))
                if unit is not None and not running[unit]:
                    strays.add(unit)
            return function(*args, **(kwargs or {}))

    def left(module: nn.Module, input: Any, output: Any, name: str) -> None:
        running.subtract({name: 1})
        if any(not isinstance(leaf, Tensor | int | float | str | None) for leaf in TREE_LEAVES.found(output)):
            strays.add(name)  # torch, which looks into outputs so, could not tell when its backward pass begins

    handles = []
    for name in units:
        module = model.get_submodule(name)
        handles.append(module.register_forward_pre_hook(lambda *_, name=name: running.update({name: 1})))
        handles.append(module.register_forward_hook(partial(left, name=name)))
    try:
        with torch.no_grad(), Watch():
            trial(model)
    finally:
        for handle in handles:
            handle.remove()
    return strays
