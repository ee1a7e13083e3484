"""A rank's own model."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from torch import nn

from manyhands.strategies.pieces.rank_model import compile_whole


class Doubled(nn.Module):
    def __init__(self, size: int):
        super().__init__()
        self.layer = nn.Linear(size, 2 * size)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self.layer(input).relu()


def test_an_nn_sequential_is_compiled_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each child was compiled by itself, the first eight of a class; MobileNetV2 ran as 9 graphs with ordinary passes between."""
    import torch._dynamo

    monkeypatch.setattr(nn.Module, "compile", functools.partialmethod(nn.Module.compile, backend="eager"))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model, input = nn.Sequential(*(Doubled(2**power) for power in range(5))), torch.randn(3, 1)
    twin, expected = copy.deepcopy(model), model(input)
    compile_whole(model)
    assert torch.equal(model(input), expected)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    with torch.no_grad():
        copied = copy.deepcopy(model)
        model[0].layer.weight.zero_()
    assert torch.equal(copied(input), twin(input))  # a copy computes with its own weights
