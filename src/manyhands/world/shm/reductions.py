"""Reductions: the ranks' numbers, combined in rank order, so that all ranks hold the same bits, the same in every run."""

# torch's stubs do not know int(ReduceOp).
# mypy: disable-error-code="call-overload"

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from ...errors import BadInput

_HALVES = (torch.bfloat16, torch.float16)  # summed in float32 and rounded once

SUM, AVG = int(ReduceOp.SUM), int(ReduceOp.AVG)
COMBINE: dict[int, Callable[..., Tensor]] = {
    SUM: torch.add,
    AVG: torch.add,
    int(ReduceOp.PRODUCT): torch.mul,
    int(ReduceOp.MIN): torch.minimum,
    int(ReduceOp.MAX): torch.maximum,
    int(ReduceOp.BAND): torch.bitwise_and,
    int(ReduceOp.BOR): torch.bitwise_or,
    int(ReduceOp.BXOR): torch.bitwise_xor,
}


def combine(operation: int, parts: list[Tensor], out: Tensor) -> None:
    """Reduce the ranks' parts, in rank order, into `out`, which may be one of the first two and none of the others."""
    function = COMBINE[operation]
    if out.dtype in _HALVES:
        total = parts[0].float()
        for part in parts[1:]:
            total = function(total, part)
        out.copy_(total.div_(len(parts)) if operation == AVG else total)
        return
    if len(parts) == 1:
        out.copy_(parts[0])
        return
    function(parts[0], parts[1], out=out)
    for part in parts[2:]:
        function(out, part, out=out)
    if operation == AVG:
        out.div_(len(parts))


def reduction(opts: Any, dtype: torch.dtype) -> int:
    """The number of the reduction that torch's options ask for (none: sum)."""
    operation = SUM if opts is None else int(opts.reduceOp.op)
    if problem := _problem(operation, dtype):
        raise BadInput(problem)
    return operation


@cache
def _problem(operation: int, dtype: torch.dtype) -> str | None:
    """Why values of this dtype cannot be reduced so, found by trying."""
    one = torch.ones(1, dtype=dtype)
    try:
        combine(operation, [one, one], one.clone())
    except (RuntimeError, KeyError) as error:
        name = ReduceOp.RedOpType(operation).name
        return f"manyhands_shm cannot reduce {dtype} by {name} ({str(error).splitlines()[0]})"
    return None
