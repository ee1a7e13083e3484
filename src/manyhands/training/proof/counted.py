"""Counted: how many units a target holds, in the few forms that losses of torch and of Hugging Face's models have.

target != -100              entries that the loss does not pass over
labels[..., 1:] != -100     the same without each row's first: a model that predicts the next token
class weights of target     every entry counts as much as its class does
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ...data import nest

Path = tuple[str | int, ...]
BLOCK = 1 << 22  # entries that are looked at together


class Counted:
    """Units of a target: a weight as `Task.weight` takes it, and in words."""

    def __init__(
        self,
        path: Path = (),
        ignore: int = -100,
        shifted: bool = False,
        class_weights: Tensor | None = None,
        name: str = "",
    ):
        self.path, self.ignore, self.shifted, self.class_weights, self.name = path, ignore, shifted, class_weights, name

    def __call__(self, target: Any) -> Tensor:
        return self.each(at(target, self.path)).sum()

    def each(self, entries: Tensor) -> Tensor:
        """What every entry of the target counts."""
        if self.shifted:
            entries = entries[..., 1:]
        counts = entries != self.ignore
        if self.class_weights is None:
            return counts
        if self.class_weights.device != entries.device:
            self.class_weights = self.class_weights.to(entries.device)
        return self.class_weights.double()[entries.masked_fill(~counts, 0)] * counts

    def per_sample(self, target: Any) -> Iterator[Tensor]:
        """The units of every sample, some samples at a time."""
        entries = at(target, self.path)
        rows = max(1, BLOCK // max(1, entries[:1].numel()))
        for start in range(0, len(entries), rows):
            yield (
                self.each(entries[start : start + rows]).flatten(1).sum(1)
                if entries.dim() > 1
                else self.each(entries[start : start + rows])
            )

    def _entries(self, root: str) -> str:
        steps = "".join(f"[{step!r}]" if isinstance(step, int) else f'["{step}"]' for step in self.path)
        return root + steps + ("[..., 1:]" if self.shifted else "")

    def __repr__(self) -> str:
        entries = self._entries(self.name or "target")
        return f"{entries} != {self.ignore}" if self.class_weights is None else f"class weights of {entries}"

    def line(self) -> str:
        """As somebody would write it into a task."""
        entries = self._entries("target")
        return f"weight=lambda target: ({entries} != {self.ignore}).sum()"


def forms(target: Any, ignore: int, class_weights: Tensor | None = None, name: str = "") -> Iterator[Counted]:
    """All forms for every tensor of whole numbers in a target."""
    for path, leaf in leaves_by_path(target):
        if leaf.dtype in (torch.int64, torch.int32, torch.int16, torch.uint8) and leaf.dim():
            yield Counted(path, ignore, False, class_weights, name)
            if leaf.dim() > 1:
                yield Counted(path, ignore, True, class_weights, name)


def leaves_by_path(value: Any, path: Path = ()) -> Iterator[tuple[Path, Tensor]]:
    if isinstance(value, Tensor):
        yield path, value
        return
    names = list(value) if isinstance(value, Mapping) else nest.attribute_names(value)
    for step, item in zip(names or range(len(nest.children(value) or ())), nest.children(value) or (), strict=False):
        if isinstance(step, str | int):
            yield from leaves_by_path(item, (*path, step))


def at(value: Any, path: Path) -> Tensor:
    for step in path:
        by_key = isinstance(step, int) or isinstance(value, Mapping)
        value = value[step] if by_key else getattr(value, str(step))
    assert isinstance(value, Tensor)
    return value
