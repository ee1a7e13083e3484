"""SGD over many small slices of the parameters, so that a whole GPU takes part in the update of a small model.

torch's fused update gives one block of threads to every 65,536 numbers of a tensor: a layer of 48,000 weights is then
the work of one block while the others look on. The same kernel over slices of a few thousand does the same arithmetic
on as many blocks as there are slices.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ...strategies.pieces.fused_optimizer import direct_sgd

SLICE = 4096
MOST_NUMBERS = 1 << 20  # larger models fill the device as they are, and would only pay for the slices


def sliced_sgd(optimizer: torch.optim.Optimizer) -> Callable[[], None] | None:
    """`optimizer.step` in slices, or None where that gains nothing; momentum must be there already."""
    tensors = [p for group in optimizer.param_groups for p in group["params"]]
    if not SLICE < sum(p.numel() for p in tensors) <= MOST_NUMBERS:
        return None
    if not all(p.is_contiguous() and p.dtype == torch.float32 for p in tensors):
        return None
    return direct_sgd(optimizer, _slices)


def _slices(tensors: list[Tensor]) -> list[Tensor]:
    return [part for tensor in tensors for part in tensor.detach().contiguous().view(-1).split(SLICE)]
