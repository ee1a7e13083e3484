"""Accuracy, in all and of every class, where targets are class numbers: what an evaluation says without being asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

IGNORED = -100  # as a target, by torch's default
MOST_CLASSES = 1000  # of a vocabulary nobody reads the accuracy of every word: larger numbers share a slot, the next
NOT_ASKED = MOST_CLASSES + 1  # the slot of targets that are ignored
SLOTS = MOST_CLASSES + 2


class Accuracy:
    """Right answers and samples of each class, over the batches of one evaluation.

    Targets below zero are ignored, by torch's convention. The loss of the first batch tells what shapes do not: a model that
    gives its loss itself (`own`) may have compared its outputs with the targets one place on, as language models do; and of
    a square table of scores, which side counts the classes.
    """

    def __init__(self) -> None:
        self._classes_at: int | None = None  # the dimension, once a batch has told; the same in every evaluation
        self._counts: Tensor | None = None  # of a slot: wrong answers, right ones; where the batches are
        self._shifted: bool | None = None  # by one place; None until the first batch

    def reset(self) -> None:
        """Back to no batches; the counts keep their place in memory."""
        self._shifted = None
        if self._counts is not None:
            self._counts.zero_()

    def add(self, output: Any, target: Any, loss: Tensor | None = None, own: bool = False) -> None:
        """Take in a batch; one without class numbers changes nothing."""
        scores = _logits(output)
        if not isinstance(scores, Tensor) or not isinstance(target, Tensor) or target.is_floating_point():
            return
        if self._shifted is None:
            self._shifted = own and loss is not None and _is_shifted(scores, target, loss)
        if self._shifted:
            scores, target = scores[..., :-1, :], target[..., 1:]
        right = self._right(scores, target, loss)
        if right is not None:
            self._count(right.reshape(-1), target.reshape(-1).long())

    def _right(self, scores: Tensor, target: Tensor, loss: Tensor | None) -> Tensor | None:
        """Which predictions are right; None where the shapes do not fit class numbers."""
        possible = _class_dimensions(scores, target)
        if len(possible) > 1 and loss is not None:
            if self._classes_at is None:
                self._classes_at = min(possible, key=lambda dim: abs(float(_cross_entropy(scores, target, dim) - loss)))
            possible = [self._classes_at]
        if possible:
            return scores.argmax(possible[0]) == target
        if scores.shape == target.shape and scores.is_floating_point():  # one logit a sample
            return (scores > 0) == target.bool()
        return None

    def _count(self, right: Tensor, target: Tensor) -> None:
        """Add to a table of fixed size: a GPU is asked neither for the largest target nor for anything else."""
        if self._counts is None:
            self._counts = torch.zeros(2 * SLOTS, dtype=torch.int64, device=target.device)
        slot = torch.where(target < 0, NOT_ASKED, target.clamp(max=MOST_CLASSES))
        self._counts.scatter_add_(0, 2 * slot + right, torch.ones_like(slot))

    def result(self) -> dict[str, Any]:
        counts = torch.zeros(2 * SLOTS) if self._counts is None else self._counts.cpu()
        wrong, right = counts.reshape(SLOTS, 2)[:NOT_ASKED].T.tolist()
        seen = [sum(pair) for pair in zip(wrong, right, strict=True)]
        total, more = sum(seen), seen[MOST_CLASSES]
        return {
            "accuracy": sum(right) / total if total else None,
            "per_class": {} if more else {str(n): right[n] / count for n, count in enumerate(seen) if count},
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


def _class_dimensions(scores: Tensor, target: Tensor) -> list[int]:
    """Where the scores of the classes may stand: in the place torch's losses expect them, or in the last."""
    if scores.dim() != target.dim() + 1:
        return []
    found = sorted({1, scores.dim() - 1}) if scores.dim() > 1 else []
    return [
        dim for dim in found if scores.shape[dim] > 1 and scores.shape[:dim] + scores.shape[dim + 1 :] == target.shape
    ]


def _cross_entropy(scores: Tensor, target: Tensor, dim: int) -> Tensor:
    """The mean over targets that are classes, whatever else is among them."""
    chosen = target.long().clamp(0, scores.shape[dim] - 1).unsqueeze(dim)
    each = -scores.detach().float().log_softmax(dim).gather(dim, chosen).squeeze(dim)
    return each[target >= 0].mean()
