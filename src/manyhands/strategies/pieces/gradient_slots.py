"""A place in shared memory for one gradient of every parameter: whole, by rows, or none.

    counts[i]    NONE: no gradient · WHOLE: values[i] is all of it · k >= 0: k rows, their numbers in rows[i]

A sparse gradient is coalesced first, so it never has more rows than its parameter and always fits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from .parameter_slices import Slice, rows_of, whole

NONE, WHOLE = -2, -1
Parts = tuple[int, list[Tensor]]  # a count as above, and the tensors that carry the gradient


def parts(gradient: Tensor | None, item: Slice) -> Parts:
    """What must travel of a slice of a gradient."""
    if gradient is None:
        return NONE, []
    if not gradient.is_sparse:
        return WHOLE, [item.of(gradient)]
    if gradient.sparse_dim() != 1:
        return WHOLE, [item.of(gradient.to_dense())]
    gradient = gradient.coalesce()
    numbers, values = gradient.indices()[0], gradient.values()
    if item.start > 0 or item.stop < gradient.shape[0]:
        edges = torch.tensor([item.start, item.stop], device=numbers.device)
        low, high = torch.searchsorted(numbers, edges).tolist()
        numbers, values = numbers[low:high] - item.start, values[low:high]
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
    return sum(tensor.nbytes for tensor in carried)


def add(total: Tensor | None, gradient: Tensor | None) -> Tensor | None:
    """Their sum; `total` is written over where it can be."""
    if total is None or gradient is None:
        return gradient if total is None else total
    if not total.is_sparse:
        return total.add_(gradient)
    return total + gradient if gradient.is_sparse else gradient.add_(total)


def slot_tensors(parameters: Mapping[str, Tensor], prefix: str, readers: int = 1) -> dict[str, Tensor]:
    """What must be shared for a gradient, of which each reader has a slot with its slices."""
    shared = {f"{prefix}/counts": torch.full((readers, len(parameters)), NONE, dtype=torch.int64)}
    for name, parameter in parameters.items():
        shared[f"{prefix}/values/{name}"] = torch.zeros_like(parameter, device="cpu")
        shared[f"{prefix}/rows/{name}"] = torch.zeros(rows_of(parameter), dtype=torch.int64)
    return shared


class GradientSlot:
    """Slices of one gradient, in tensors that several processes see (`slot_tensors`)."""

    def __init__(self, shared: Mapping[str, Tensor], prefix: str, slices: Sequence[Slice], reader: int = 0):
        self.values = [item.of(shared[f"{prefix}/values/{item.name}"]) for item in slices]
        self.rows = [shared[f"{prefix}/rows/{item.name}"][item.start : item.stop] for item in slices]
        self.slices, self.counts = slices, shared[f"{prefix}/counts"][reader, : len(slices)]

    def put(self, gradients: Mapping[str, Tensor | None]) -> int:
        """Write a gradient here, but for what lies here already; returns the bytes that were handed over."""
        found = [parts(gradients[item.name], item) for item in self.slices]
        for index, (count, carried) in enumerate(found):
            self._write(index, count, carried)
        return sum(nbytes(carried) for _, carried in found)

    def _write(self, index: int, count: int, carried: Sequence[Tensor]) -> None:
        self.counts[index] = count
        if count == WHOLE:
            if carried[0].data_ptr() != self.values[index].data_ptr():
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

    def add(self, gradients: Mapping[str, Tensor | None]) -> int:
        """Add a gradient to the one that lies here; returns the bytes that were handed over."""
        handed = 0
        for index, (item, here) in enumerate(zip(self.slices, self.get(), strict=True)):
            count, carried = parts(gradients[item.name], item)
            handed += nbytes(carried)
            total = add(here, from_parts(count, [tensor.to("cpu") for tensor in carried], self.values[index].shape))
            if total is not None and total is not here:
                self._write(index, *parts(total, whole(item.name, total)))
        return handed
