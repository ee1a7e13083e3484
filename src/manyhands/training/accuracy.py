"""Accuracy, in all and of every class, where targets are class numbers: what an evaluation says without being asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

IGNORED = -100  # as a target, by torch's default
MOST_CLASSES = 1000  # of a vocabulary nobody reads the accuracy of every word


class Accuracy:
    """Right answers and samples of each class, over the batches of one evaluation.

    Targets below zero are ignored, by torch's convention. A model that gives its loss itself may have compared its
    outputs with the targets one place on, as language models do: `own_loss` tells.
    """

    def __init__(self) -> None:
        self.right = torch.zeros(0, dtype=torch.int64)
        self.seen = torch.zeros(0, dtype=torch.int64)
        self._shifted: bool | None = None  # by one place; None until the first batch

    def add(self, output: Any, target: Any, own_loss: Tensor | None = None) -> None:
        """Take in a batch; one without class numbers changes nothing."""
        scores = _logits(output)
        if not isinstance(scores, Tensor) or not isinstance(target, Tensor) or target.is_floating_point():
            return
        if self._shifted is None:
            self._shifted = own_loss is not None and _is_shifted(scores, target, own_loss)
        if self._shifted:
            scores, target = scores[..., :-1, :], target[..., 1:]
        right = _right(scores, target)
        if right is not None:
            self._count(right.reshape(-1).cpu(), target.reshape(-1).cpu().long())

    def _count(self, right: Tensor, target: Tensor) -> None:
        known = target >= 0
        right, target = right[known], target[known]
        size = max(len(self.seen), int(target.max()) + 1 if len(target) else 0)
        self.seen = _grow(self.seen, size) + torch.bincount(target, minlength=size)
        self.right = _grow(self.right, size) + torch.bincount(target[right], minlength=size)

    def result(self) -> dict[str, Any]:
        total = int(self.seen.sum())
        classes = enumerate(self.seen.tolist() if len(self.seen) <= MOST_CLASSES else [])
        return {
            "accuracy": float(self.right.sum()) / total if total else None,
            "per_class": {str(number): float(self.right[number]) / int(seen) for number, seen in classes if seen},
        }


def _logits(output: Any) -> Any:
    """Of a model that names its outputs, those that choose a class."""
    if isinstance(output, Mapping):
        return output.get("logits")
    return getattr(output, "logits", output)


def _is_shifted(scores: Tensor, target: Tensor, own_loss: Tensor) -> bool:
    """Whether a model's own loss is that of every place's scores against the target of the next."""
    if scores.dim() != target.dim() + 1 or target.dim() < 2 or target.shape[-1] < 2:
        return False
    classes = ((target >= 0) & (target < scores.shape[-1])) | (target == IGNORED)
    if not bool(classes.all()):
        return False
    next_ones = F.cross_entropy(scores[..., :-1, :].flatten(0, -2).float(), target[..., 1:].flatten())
    return bool(torch.isclose(next_ones, own_loss.float(), rtol=1e-3))


def _right(output: Tensor, target: Tensor) -> Tensor | None:
    """Which predictions are right; None where the shapes do not fit class numbers."""
    for dim in (1, -1):
        if output.dim() == target.dim() + 1 and output.shape[dim] > 1:
            predicted = output.argmax(dim)
            if predicted.shape == target.shape:
                return predicted == target
    if output.shape == target.shape and output.is_floating_point():  # one logit a sample
        return (output > 0) == target.bool()
    return None


def _grow(counts: Tensor, size: int) -> Tensor:
    return torch.cat([counts, counts.new_zeros(size - len(counts))])
