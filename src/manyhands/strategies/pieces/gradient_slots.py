"""A place in shared memory for one gradient of every parameter: whole, by rows, or none.

    counts[i]    NONE: no gradient · WHOLE: values[i] is all of it · k >= 0: k rows, their numbers in rows[i]

A sparse gradient is coalesced first, so it never has more rows than its parameter and always fits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...model.torch_internals import VERSIONS
from .foreach import add_each, copy_all, zero_all

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


def add_all(total: list[Tensor | None], gradients: list[Tensor | None]) -> list[Tensor | None]:
    """Their sums; `total` is written over where it can be, in one call where every gradient is whole."""
    if any(gradient is None or gradient.is_sparse for gradient in (*total, *gradients)):
        return [add(sum_, gradient) for sum_, gradient in zip(total, gradients, strict=True)]
    add_each(total, gradients)  # type: ignore[arg-type]
    return total


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
        self._addresses = [value.data_ptr() for value in self.values]
        self._all_whole = [WHOLE] * len(self.values)
        self.nbytes = nbytes(self.values)  # of a gradient that is whole

    @property
    def whole(self) -> bool:
        """Whether the gradient that lies here is whole for every parameter."""
        return bool(self.counts.tolist() == self._all_whole)

    def put(self, found: Sequence[Parts]) -> int:
        """Write a gradient here, but for what lies here already; returns the bytes that were handed over."""
        copied = [
            (self.values[index], carried[0])
            for index, (count, carried) in enumerate(found)
            if count == WHOLE and carried[0].data_ptr() != self._addresses[index]
        ]
        if copied:  # one call for all of them
            copy_all([place for place, _ in copied], [gradient for _, gradient in copied])
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
        if self.whole:
            return list(self.values)
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


class AtHome:
    """Gradients that backward adds up where another process reads them, so that handing them over copies nothing.

    A parameter's gradient lives there from its second update on if the first was whole. Backward raises the version of
    what it adds to: so a parameter that got no gradient, which an optimizer must not touch, is told from one of zeros.
    """

    def __init__(self, parameters: Mapping[str, Tensor], homes: Mapping[str, Tensor]):
        self._parameters, self._homes = parameters, homes
        self._known: list[tuple[Tensor, Tensor]] = []  # parameters at home, with the place of their gradients
        self._away = {name for name in homes if VERSIONS.found and parameters[name].device.type == "cpu"}
        self._versions: list[int] | None = None  # of the places, while they are laid out

    def lay_out(self) -> None:
        """Before the first backward of an update: zeros for it to add to."""
        if self._known and self._versions is None:
            zero_all([home for _, home in self._known])
            for parameter, home in self._known:
                parameter.grad = home
            self._versions = [VERSIONS.found(home) for _, home in self._known]

    def collect(self) -> dict[str, Tensor | None]:
        """After the last backward of an update: the gradients that came, which the parameters no longer hold."""
        for (parameter, home), version in zip(self._known, self._versions or [], strict=self._versions is not None):
            if parameter.grad is home and VERSIONS.found(home) == version:
                parameter.grad = None
        self._versions = None
        return {name: parameter.grad for name, parameter in self._parameters.items()}

    def adopt(self, gradients: Mapping[str, Tensor | None]) -> None:
        """These were handed over: the whole ones among them live here from now on."""
        for name in list(self._away):
            gradient = gradients[name]
            if gradient is not None and not gradient.is_sparse:
                self._away.remove(name)
                self._known.append((self._parameters[name], self._homes[name]))


def slot_tensors(parameters: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """What must be shared for one slot; `open_slot` finds it again."""
    shared = {f"{prefix}/counts": torch.full((len(parameters),), NONE, dtype=torch.int64)}
    for name, parameter in parameters.items():
        shared[f"{prefix}/values/{name}"] = torch.zeros_like(parameter, device="cpu")
        shared[f"{prefix}/rows/{name}"] = torch.zeros(rows_of(parameter), dtype=torch.int64)
    return shared


def open_slot(shared: Mapping[str, Tensor], prefix: str, names: Sequence[str]) -> GradientSlot:
    return GradientSlot(
        [shared[f"{prefix}/values/{name}"] for name in names],
        [shared[f"{prefix}/rows/{name}"] for name in names],
        shared[f"{prefix}/counts"],
    )
