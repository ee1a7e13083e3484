"""The model and its loss as one module for torch's wrappers, also where a loss does not reach every parameter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...model.calling import Calling
from ...world.rank import Rank
from ..job import Job
from .units import Units


class WithLoss(nn.Module):
    """The model and its loss as one module, for wrappers: what comes out is a number, whatever the model returns.

    torch's wrappers look for tensors in what a module returns, and pass over what they cannot open.
    """

    def __init__(self, model: nn.Module, calling: Calling | Units):
        super().__init__()
        self.model = model
        self._calling = calling  # a loss that is a module is not part of the model

    def forward(self, input: Any, target: Any) -> Tensor:
        return self._calling.loss_of(self._calling.output(self.model, input), target)


def may_miss(job: Job) -> bool:
    """Whether a batch may leave parameters unused: some layers run for some samples, or are skipped at random."""
    return bool(job.unused) or job.proof.reseeds


class WithAllGradients(WithLoss):
    """Makes sure that every parameter has a gradient, of zeros where the loss does not reach it, and notes which those are.

    All ranks then sum the same tensors, whatever layers their samples went through.
    """

    missed: frozenset[str] = frozenset()

    def forward(self, input: Any, target: Any) -> Tensor:
        loss = super().forward(input, target)
        reached = reached_leaves(loss)
        named = [(name, p) for name, p in self.model.named_parameters() if p.requires_grad and id(p) not in reached]
        self.missed = frozenset(name for name, _ in named)
        for _, parameter in named:
            loss = loss + parameter.reshape(-1)[:0].sum().to(loss.dtype)
        return loss

    def forget_unreached(self, named: Sequence[tuple[str, nn.Parameter]], rank: Rank, empty: bool) -> None:
        """Take away gradients of parameters that no rank's samples reached: an optimizer tells zeros from none.

        A gradient that is not zero counts as well, because reentrant checkpointing hides what a loss reaches.
        """
        reached = [name not in self.missed or (p.grad is not None and bool(p.grad.any())) for name, p in named]
        marks = torch.tensor([float(mark and not empty) for mark in reached], device=rank.device)
        rank.all_reduce(marks)
        for (_, parameter), mark in zip(named, marks.tolist(), strict=True):
            if not mark:
                parameter.grad = None


def reached_leaves(loss: Tensor) -> set[int]:
    """The ids of the tensors that a backward pass from here would give a gradient."""
    found: set[int] = set()
    seen, waiting = {loss.grad_fn}, [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None:
            continue
        if hasattr(node, "variable"):
            found.add(id(node.variable))
        for following, _ in node.next_functions:
            if following not in seen:
                seen.add(following)
                waiting.append(following)
    return found
