"""One call for a whole list of tensors, where this torch has it: a small model pays for every call from Python."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...model.torch_internals import FOREACH


def copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    if FOREACH.found:
        torch._foreach_copy_(list(targets), list(sources))
        return
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)


def add_each(totals: Sequence[Tensor], others: Sequence[Tensor]) -> None:
    if FOREACH.found:
        torch._foreach_add_(list(totals), list(others))
        return
    for total, other in zip(totals, others, strict=True):
        total.add_(other)


def zero_all(tensors: Sequence[Tensor]) -> None:
    if FOREACH.found:
        torch._foreach_zero_(list(tensors))
        return
    for tensor in tensors:
        tensor.zero_()
