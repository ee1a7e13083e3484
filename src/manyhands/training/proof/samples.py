"""Samples that tell more than the first ones: those with numbers that the first do not have.

A loss may pass over a target (-100, a padding token) or weigh a class of its own. Where the first batch happens to hold
none of these it looks like a mean over samples, and a later batch shows that it is not.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...data import nest

NUMBERS = 1_000_000  # of each tensor are looked at: some milliseconds


def with_rare_values(data: Any, indices: Tensor, samples: int) -> Tensor:
    """The indices, up to half of them exchanged for samples with values that the others lack, the rarest first."""
    telling: list[int] = []
    for column in nest.leaves(data):
        whole_numbers = not column.is_floating_point() and not column.is_complex() and column.layout == torch.strided
        if whole_numbers and column.numel() and column.dim() and len(column) == samples:
            head = column[: max(NUMBERS // max(column[0].numel(), 1), 1)].flatten(1 if column.dim() > 1 else 0).cpu()
            telling += _places_of_extremes(head) if head.dim() > 1 else _places_of_missing(head, column[indices].cpu())
    known = set(indices.tolist())
    chosen = [place for place in dict.fromkeys(telling) if place not in known][: len(indices) // 2]
    return torch.cat([indices[: len(indices) - len(chosen)], torch.tensor(chosen, dtype=indices.dtype)])


def _places_of_missing(column: Tensor, there: Tensor) -> list[int]:
    """The first sample of each value that is not there."""
    values, counts = column.unique(return_counts=True)
    missing = ~torch.isin(values, there)
    rarest = values[missing][counts[missing].argsort()][:8]
    return [int((column == value).to(torch.uint8).argmax()) for value in rarest]


def _places_of_extremes(rows: Tensor) -> list[int]:
    """The rows with the most of the smallest and of the largest number: padding is one of these."""
    return [int((rows == value).sum(1).argmax()) for value in (rows.min(), rows.max())]
