"""Costs are those of the layers, and measuring leaves no trace."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from manyhands.errors import BadInput
from manyhands.model import profile

sys.path.insert(0, str(Path(__file__).parent))
from zoo import Gate, make


def test_bytes_are_those_of_the_layers() -> None:
    model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 3, bias=False))
    first, relu, last = profile(model, torch.randn(4, 10))
    assert [layer.name for layer in (first, relu, last)] == ["0", "1", "2"]
    assert [layer.parameter_bytes for layer in (first, relu, last)] == [4 * (200 + 20), 0, 4 * 60]
    assert [layer.activation_bytes for layer in (first, relu, last)] == [4 * 4 * 20, 4 * 4 * 20, 4 * 4 * 3]
    assert [layer.saved_bytes for layer in (first, relu, last)] == [4 * 4 * 10, 4 * 4 * 20, 4 * 4 * 20]
    assert all(layer.forward_seconds > 0 and layer.backward_seconds > 0 for layer in (first, relu, last))


def test_time_follows_the_work() -> None:
    small, large = profile(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 16384)), torch.randn(256, 64))
    assert large.forward_seconds > 3 * small.forward_seconds
    assert large.backward_seconds > 3 * small.backward_seconds


def test_layers_without_gradient_have_no_backward() -> None:
    model, example = make("straight_through")
    layers = {layer.name: layer for layer in profile(model, example)}
    assert layers["frozen"].backward_seconds == 0
    assert not layers["frozen"].differentiable
    assert layers["a"].differentiable


def test_measuring_leaves_everything_as_it_was() -> None:
    model, example = make("resnet")
    model.layers[1].eval()
    model(example).sum().backward()
    before = copy.deepcopy(model.state_dict())
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    modes, state = [module.training for module in model.modules()], torch.get_rng_state()
    profile(model, example)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(torch.equal(gradients[name], parameter.grad) for name, parameter in model.named_parameters())
    assert modes == [module.training for module in model.modules()]
    assert torch.equal(state, torch.get_rng_state())


def test_a_model_that_cannot_be_opened_says_why() -> None:
    with pytest.raises(BadInput, match="Gate cannot be measured layer by layer: its forward branches on"):
        profile(Gate(), torch.randn(2, 6))
