"""The fused kernel alone writes what the optimizer writes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import manyhands as mh
from manyhands.strategies.job import StepSettings
from manyhands.strategies.pieces.fused_optimizer import direct_sgd
from manyhands.strategies.pieces.updater import Updater
from manyhands.training.build import build

OPTIONS: list[dict[str, Any]] = [
    {},
    {"momentum": 0.9},
    {"momentum": 0.9, "dampening": 0.2, "weight_decay": 0.01},
    {"momentum": 0.9, "nesterov": True},
    {"maximize": True},
]


def nets() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Linear(7, 9), nn.Linear(9, 3), nn.Linear(9, 3)])
    return model, copy.deepcopy(model)


def gradients(model: nn.Module, number: int, late: int) -> None:
    """The last layer has its first gradient in step `late`."""
    torch.manual_seed(number)
    model.zero_grad()
    hidden = model[0](torch.randn(8, 7))  # type: ignore[index,operator]
    output = model[1](hidden)  # type: ignore[index,operator]
    if number >= late:
        output = output + model[2](hidden)  # type: ignore[index,operator]
    output.pow(2).mean().backward()


def train_both(options: dict[str, Any], late: int, fused: bool) -> list[tuple[torch.Tensor, torch.Tensor]]:
    model, other = nets()
    usual = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused, **options)
    ours = torch.optim.SGD(other.parameters(), lr=0.1, **options)
    step = direct_sgd(ours)
    assert step is not None
    for number in range(5):
        gradients(model, number, late)
        gradients(other, number, late)
        usual.step()
        step()
        usual.param_groups[0]["lr"] = ours.param_groups[0]["lr"] = 0.1 / (number + 2)  # as a schedule does
    assert usual.state_dict()["state"].keys() == ours.state_dict()["state"].keys()
    return list(zip(model.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("options", OPTIONS)
def test_it_is_the_optimizer_to_the_last_bit(options: dict[str, Any]) -> None:
    assert all(torch.equal(one, two) for one, two in train_both(options, late=0, fused=True))


@pytest.mark.parametrize("options", OPTIONS)
def test_a_parameter_that_is_used_later_than_others(options: dict[str, Any]) -> None:
    """torch's fused SGD with momentum fails here with a TypeError, so ours once did too."""
    assert all(torch.allclose(one, two, atol=1e-6) for one, two in train_both(options, late=2, fused=False))


def test_others_keep_their_own_step() -> None:
    model, other = nets()
    assert direct_sgd(torch.optim.Adam(model.parameters())) is None
    assert direct_sgd(type("Mine", (torch.optim.SGD,), {})(model.parameters(), lr=0.1)) is None
    hooked = torch.optim.SGD(model.parameters(), lr=0.1)
    hooked.register_step_post_hook(lambda *_: None)
    assert direct_sgd(hooked) is None
    other[0].double()  # type: ignore[index,operator]
    assert direct_sgd(torch.optim.SGD(other.parameters(), lr=0.1)) is None


def test_a_hook_on_the_users_optimizer_is_called_in_every_step() -> None:
    calls: list[int] = []

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        made = torch.optim.SGD(parameters, lr=0.1)
        made.register_step_post_hook(lambda *_: calls.append(1))
        return made

    data = torch.randn(40, 4), torch.randint(2, (40,))
    task = mh.Task(lambda: nn.Linear(4, 2), data, nn.functional.cross_entropy, optimizer, batch_size=10)
    updater = Updater(build(task, StepSettings()), list(nn.Linear(4, 2).named_parameters()))
    calls.clear()  # of trials on a few numbers, before the start
    for _ in range(3):
        for _, parameter in updater.named:
            parameter.grad = torch.ones_like(parameter)
        updater.update()
    assert len(calls) == 3
