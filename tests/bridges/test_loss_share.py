"""What the graph of a loss tells: how it was divided, and whether it is a mean or a sum."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from manyhands.bridges.scripts.loss_share import share

TARGET = torch.tensor([0, 1, 2, -100])


@pytest.mark.parametrize(
    ("loss", "factor", "kind", "count"),
    [
        (lambda x: F.mse_loss(x, torch.zeros(4, 3)), 1, "mean", 4),
        (lambda x: F.cross_entropy(x, TARGET) / 4, 1 / 4, "mean", 3),
        (lambda x: 0.5 * (x**2).mean() / torch.tensor(2.0), 1 / 4, "mean", 4),
        (lambda x: F.l1_loss(x, torch.ones(4, 3), reduction="sum"), 1, "sum", 4),
        (lambda x: x.sum() / 8, 1 / 8, "sum", 4),
        (lambda x: -(x.mean() + 0.1 * x.std()) / 2, 1 / 2, "mean", 4),
    ],
)
def test_a_loss_tells_how_it_was_made(loss: Callable[[Tensor], Tensor], factor: float, kind: str, count: float) -> None:
    found = share(loss(torch.randn(4, 3, requires_grad=True)), rows=4)
    assert (found["factor"], found["kind"], found["count"]) == (pytest.approx(factor), kind, count)
