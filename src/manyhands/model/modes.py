"""Modules that came in eval mode: those that somebody chose stay in it, whoever calls train().

A layer put into eval mode while the rest trains (a BatchNorm whose statistics are frozen, a backbone without dropout) was
put there on purpose. A whole model in eval mode says nothing: it may only have been evaluated before, or come so from a
file. It is trained in training mode, as every training loop does, and the record says so.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from torch import nn

from .torch_internals import BATCHNORMS

SEVERAL = 3  # names are told up to this number


def keep_eval_modes(model: nn.Module) -> list[str]:
    """Make the modules that were put into eval mode stay there; returns the outermost ones, as people know them."""
    kept: list[str] = []
    decided: list[str] = []  # names of modules in eval mode whose parts go with them
    for name, module in model.named_modules():
        if any(name.startswith(f"{outer}.") for outer in decided) or not wholly_in_eval(module):
            continue
        decided.append(name)
        if module is model:
            break
        if comes_in_eval(module):
            continue
        with suppress(Exception):  # a scripted module takes no attributes
            vars(module)["train"] = _stays  # of the instance: train() of its parents comes by here
            kept.append(f'{type(module).__name__} "{name}"')
    return kept


def wholly_in_eval(model: nn.Module) -> bool:
    return not any(module.training for module in model.modules())


def differs_in_training(model: nn.Module) -> bool:
    """Whether the model has layers that are known to compute something else in training."""
    return any(
        isinstance(module, BATCHNORMS) or (isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0)
        for module in model.modules()
    )


def comes_in_eval(module: nn.Module) -> bool:
    """Whether it is of a kind that is handed out in eval mode (Hugging Face's), so that nobody need have chosen it."""
    return hasattr(type(module), "from_pretrained")


def mode_note(model: nn.Module, kept: list[str]) -> str | None:
    """What the record says about modes; None for a model that was in training mode throughout."""
    if kept:
        return f"{listed(kept)} {'stay' if len(kept) > 1 else 'stays'} in eval mode, as given"
    if wholly_in_eval(model) and differs_in_training(model) and not comes_in_eval(model):
        return "the model was given in eval mode and is trained in training mode (dropout and BatchNorm at work)"
    return None


def listed(names: list[str]) -> str:
    more = f" and {len(names) - SEVERAL} more" if len(names) > SEVERAL else ""
    return ", ".join(names[:SEVERAL]) + more


def _stays(mode: bool = True) -> Any:
    """In the place of a module's `train`."""
