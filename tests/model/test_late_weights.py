"""Weight gradients made later are the gradients autograd makes."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from manyhands.model.late_weights import AtTheEnd, give_back

MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3, bias=False)), (6,)),
    "sequence": (lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), (5, 6)),
    "conv2d": (
        lambda: nn.Sequential(
            nn.Conv2d(4, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
            nn.Conv2d(8, 8, 3, padding="same", groups=4, dilation=2, bias=False), nn.Conv2d(8, 2, 1, padding="valid"),
        ),
        (4, 9, 9),
    ),
    "conv1d": (lambda: nn.Sequential(nn.Conv1d(3, 5, 3, padding=2), nn.ReLU(), nn.Conv1d(5, 2, 2)), (3, 11)),
    "conv3d": (lambda: nn.Sequential(nn.Conv3d(2, 3, 2), nn.Conv3d(3, 2, 2)), (2, 4, 4, 4)),
    "uneven": (lambda: nn.Sequential(nn.Conv2d(3, 4, 2, padding="same"), nn.Conv2d(4, 2, (3, 2), padding="same")), (3, 6, 6)),
    "circular": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular")), (3, 6, 6)),
}  # fmt: skip


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 6)
        self.two.weight = self.one.weight
        self.frozen = nn.Linear(6, 6).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.frozen(torch.relu(self.one(x)))) @ self.one.weight


MODELS["tied"] = (Tied, (6,))


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("sizes", [(7,), (3, 2, 2)])
def test_gradients_are_autograds(name: str, sizes: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    make, shape = MODELS[name]
    model = make().double().eval()
    usual = copy.deepcopy(model)
    late = AtTheEnd(model.modules())
    late.begin(len(sizes))
    for size in sizes:
        x = torch.randn(size, *shape, dtype=torch.float64)
        there, here = x.clone().requires_grad_(), x.clone().requires_grad_()
        usual(there).pow(2).sum().backward()
        with late.passing():
            model(here).pow(2).sum().backward()
        torch.testing.assert_close(here.grad, there.grad)
    late.settle()
    for (name, expected), (_, found) in zip(usual.named_parameters(), model.named_parameters(), strict=True):
        if expected.grad is None:
            assert found.grad is None, name
        else:
            torch.testing.assert_close(found.grad, expected.grad, msg=name)


def test_nothing_is_made_before_it_is_asked_for_and_the_layers_go_back() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    late = AtTheEnd(model.modules())
    model(torch.randn(5, 3)).sum().backward()
    assert model[0].weight.grad is None
    late.settle()
    assert model[0].weight.grad is not None
    with torch.no_grad():
        assert not model(torch.randn(5, 3)).requires_grad
    give_back(late.layers)
    model.zero_grad()
    model(torch.randn(5, 3)).sum().backward()
    assert model[0].weight.grad is not None


def made(sizes: tuple[int, ...], early: bool) -> tuple[list[Tensor], list[bool]]:
    """Gradients of a batch in chunks, and what came of asking for some after each chunk."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3))
    late, answers = AtTheEnd(model.modules()), []
    late.begin(len(sizes))
    for size in sizes:
        with late.passing():
            model(torch.randn(size, 64)).pow(2).sum().backward()
        if early:
            answers.append(late.meanwhile())
    late.settle()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None], answers


def test_when_the_first_half_is_made_does_not_show() -> None:
    at_the_end, _ = made((33, 33, 33, 33), early=False)
    between, answers = made((33, 33, 33, 33), early=True)
    assert answers == [False, True, True, False]  # not before two have passed; then a layer at a time
    assert len(between) == 4
    for one, other in zip(at_the_end, between, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("chunks", "answers"), [(1, [True]), (3, [False, True, True])])
def test_the_first_half_of_an_odd_number_is_the_larger(chunks: int, answers: list[bool]) -> None:
    assert made((5,) * chunks, early=True)[1] == answers


class NoGradient(torch.autograd.Function):
    """The next stage answers that no gradient reached what it was sent."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return torch.zeros(())

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> None:
        return None


def test_no_gradient_is_not_a_gradient_of_zeros() -> None:
    """Zeros let weight decay and momentum move weights that `single` leaves alone."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Conv1d(4, 4, 1))
    late = AtTheEnd(model.modules())
    NoGradient.apply(model[0](torch.randn(5, 3))).backward()
    NoGradient.apply(model[2](torch.randn(5, 4, 1))).backward()
    late.settle()
    assert [parameter.grad for parameter in model.parameters()] == [None] * 4


def test_subclasses_keep_their_own_gradients() -> None:
    class Own(nn.Linear):
        pass

    assert AtTheEnd([Own(3, 3)]).layers == []
    assert AtTheEnd([torch.nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))]).layers == []
