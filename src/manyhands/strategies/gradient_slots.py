"""A place in shared memory for one gradient of every parameter: whole, by rows, or none.

    counts[i]    NONE: no gradient · WHOLE: values[i] is all of it · k >= 0: k rows, their numbers in rows[i]

A sparse gradient is coalesced first, so it never has more rows than its parameter and always fits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

NONE, WHOLE = -2, -1
Parts = tuple[int, list[Tensor]]  # a count as above, and the tensors that carry the gradient


def rows_of(tensor: Tensor) -> int:
    return int(tensor.shape[0]) if tensor.dim() else 1


def take_rows(tensor: Tensor, start: int, stop: int) -> Tensor:
    """Rows `start` to `stop` as a view; a tensor without dimensions is one row."""
    return tensor[start:stop] if tensor.dim() else tensor


def parts(gradient: Tensor | None, start: int, stop: int) -> Parts:
    """What must travel of the rows `start` to `stop` of a gradient."""
    if gradient is None:
        return NONE, []
    if not gradient.is_sparse:
        return WHOLE, [take_rows(gradient, start, stop)]
    if gradient.sparse_dim() != 1:
        return WHOLE, [gradient.to_dense()[start:stop]]
    gradient = gradient.coalesce()
    numbers, values = gradient.indices()[0], gradient.values()
    if start > 0 or stop < gradient.shape[0]:
        low, high = torch.searchsorted(numbers, torch.tensor([start, stop], device=numbers.device)).tolist()
        numbers, values = numbers[low:high] - start, values[low:high]
    return len(numbers), [numbers, values]


def from_parts(count: int, carried: Sequence[Tensor], shape: torch.Size) -> Tensor | None:
    """The gradient again; whole gradients and rows stay where they are, nothing is copied."""
    if count == NONE:
        return None
    if count == WHOLE:
        return carried[0]
    numbers, values = carried
    with torch.sparse.check_sparse_tensor_invariants(False):  # said aloud, or torch warns that nobody did
        return torch.sparse_coo_tensor(numbers[None, :], values, shape, is_coalesced=True)


def nbytes(carried: Sequence[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in carried)


def add(total: Tensor | None, gradient: Tensor | None) -> Tensor | None:
    """Their sum; `total` is written over where it can be."""
    if total is None or gradient is None:
        return gradient if total is None else total
    if not total.is_sparse:
        return total.add_(gradient)
    return total + gradient if gradient.is_sparse else gradient.add_(total)


class GradientSlot:
    """One gradient of every parameter, in tensors that several processes see."""

    def __init__(self, values: Sequence[Tensor], rows: Sequence[Tensor], counts: Tensor):
        self.values, self.rows = list(values), list(rows)
        self.counts: Any = counts.numpy()

    def put(self, found: Sequence[Parts]) -> int:
        """Write a gradient here; returns the bytes that were handed over."""
        whole = [index for index, (count, _) in enumerate(found) if count == WHOLE]
        if whole:  # one call for all of them
            torch._foreach_copy_([self.values[index] for index in whole], [found[index][1][0] for index in whole])
        for index, (count, carried) in enumerate(found):
            if count == WHOLE:
                self.counts[index] = count
            else:
                self._write(index, count, carried)
        return sum(nbytes(carried) for _, carried in found)

    def _write(self, index: int, count: int, carried: Sequence[Tensor]) -> None:
        self.counts[index] = count
        if count == WHOLE:
            self.values[index].copy_(carried[0])
        elif count > 0:
            self.rows[index][:count].copy_(carried[0])
            self.values[index][:count].copy_(carried[1])

    def get(self) -> list[Tensor | None]:
        """The gradient that lies here, as views."""
        found = []
        for values, rows, count in zip(self.values, self.rows, self.counts.tolist(), strict=True):
            carried = [values] if count < 0 else [rows[:count], values[:count]]
            found.append(from_parts(count, carried, values.shape))
        return found

    def add(self, found: Sequence[Parts]) -> int:
        """Add a gradient to the one that lies here; returns the bytes that were handed over."""
        here = self.get()
        for index, (count, carried) in enumerate(found):
            mine = from_parts(count, [tensor.to("cpu") for tensor in carried], self.values[index].shape)
            total = add(here[index], mine)
            if total is not None and total is not here[index]:
                self._write(index, *parts(total, 0, rows_of(self.values[index])))
        return sum(nbytes(carried) for _, carried in found)


def slot_tensors(parameters: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """What must be shared for one slot; `open_slot` finds it again."""
    shared = {f"{prefix}/counts": torch.full((len(parameters),), NONE, dtype=torch.int64)}
    for name, parameter in parameters.items():
        shared[f"{prefix}/values/{name}"] = torch.zeros(parameter.shape, dtype=parameter.dtype)
        shared[f"{prefix}/rows/{name}"] = torch.zeros(rows_of(parameter), dtype=torch.int64)
    return shared


def open_slot(shared: Mapping[str, Tensor], prefix: str, names: Sequence[str]) -> GradientSlot:
    return GradientSlot(
        [shared[f"{prefix}/values/{name}"] for name in names],
        [shared[f"{prefix}/rows/{name}"] for name in names],
        shared[f"{prefix}/counts"],
    )
