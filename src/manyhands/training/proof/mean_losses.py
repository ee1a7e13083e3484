"""What cross entropy divides by: calls of it that give a mean, seen while a model or a loss runs."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

WATCHED = {function: inspect.signature(function) for function in (F.cross_entropy, F.nll_loss)}


@dataclass(frozen=True)
class MeanCall:
    """One call: what it gave, and what it divided by."""

    value: float
    units: float
    ignore: int  # the target that it passes over
    class_weights: Tensor | None
    plain: bool  # every entry of the target counts, and as much as the next


class MeanLosses(TorchFunctionMode):
    """Notes calls of cross_entropy and nll_loss with class numbers; `unknown` where one divides by something else."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[MeanCall] = []
        self.unknown = False

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if function in WATCHED:
            given = WATCHED[function].bind(*args, **(kwargs or {}))
            given.apply_defaults()
            try:
                self._note(result.detach(), **given.arguments)
            except Exception:  # tensors of another kind: whatever they are, they are not counted here
                self.unknown = True
        return result

    @torch.no_grad()
    def _note(self, result: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, **given: Any) -> None:
        if given["reduction"] != "mean":
            return
        if target.is_floating_point() or given["size_average"] is not None or given["reduce"] is not None:
            self.unknown = True
            return
        counted = target[target != ignore_index]
        units = counted.numel() if weight is None else float(weight.double()[counted].sum())
        plain = weight is None and len(counted) == target.numel()
        weights = None if weight is None else weight.cpu().clone()
        self.calls.append(MeanCall(float(result), units, ignore_index, weights, plain))
