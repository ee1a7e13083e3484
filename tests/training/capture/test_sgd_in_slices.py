"""The update in slices writes what the optimizer writes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from manyhands.training.capture.sgd_in_slices import sliced_sgd


@pytest.mark.parametrize(
    "options",
    [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}, {"maximize": True}],
)
def test_slices_are_the_whole(options: dict[str, float]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(70, 90), nn.Linear(90, 3))
    other = copy.deepcopy(model)
    usual, ours = (torch.optim.SGD(net.parameters(), lr=0.1, fused=True, **options) for net in (model, other))
    step = None
    for number in range(4):
        x = torch.randn(8, 70)
        for net in (model, other):
            net.zero_grad()
            net(x).pow(2).mean().backward()
        usual.step()
        if number == 0:
            ours.step()
            step = sliced_sgd(ours)
            assert step is not None
        else:
            assert step is not None
            step()
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)


def test_what_gains_nothing_stays() -> None:
    small, large = nn.Linear(4, 4), nn.Linear(1200, 1200)
    assert sliced_sgd(torch.optim.SGD(small.parameters(), lr=0.1)) is None
    assert sliced_sgd(torch.optim.SGD(large.parameters(), lr=0.1)) is None
    assert sliced_sgd(torch.optim.Adam(nn.Linear(90, 90).parameters())) is None
