"""Many tensors as one flat buffer of each type: one message, or one copy, instead of many."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def through_flat(tensors: Sequence[Tensor], action: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """What `action` makes of the flat buffers, cut up again into the shapes of the tensors."""
    found: dict[int, Tensor] = {}
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        group = [index for index, tensor in enumerate(tensors) if tensor.dtype == dtype]
        flat = action(torch.cat([tensors[index].reshape(-1) for index in group]))
        pieces = flat.split([tensors[index].numel() for index in group])
        found.update((index, piece.view(tensors[index].shape)) for index, piece in zip(group, pieces, strict=True))
    return [found[index] for index in range(len(tensors))]
