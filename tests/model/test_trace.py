"""What a trace makes of forwards with several arguments, with losses inside, and of what no tensor is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyhands.errors import BadInput, Refused
from manyhands.model import Cut, cut, profile
from manyhands.model.calling import Calling

X, Y = torch.randn(6, 8), torch.randn(6, 8)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, y: Tensor, mask: Any = None, mode: str = "plain", times: float = 1.0) -> Tensor:
        h = torch.tanh(self.a(x)) - self.b(y)
        h = h if mask is None else h * mask
        return self.c(h) * (times if mode == "plain" else 2 * times)


def through(pieces: Cut, model: nn.Module, input: Any) -> Any:
    carried = pieces.flatten(input)
    for stage in pieces.stages(model):
        carried = stage(*carried)
    return pieces.assemble(carried)


@pytest.mark.parametrize(
    ("example", "call"),
    [
        ((X, Y), None),
        ((X, Y), "args"),
        ({"y": Y, "x": X}, None),
        ({"y": Y, "x": X}, "kwargs"),
        ({"mode": "other", "y": Y, "x": X, "mask": None, "times": 3}, "kwargs"),
        ((X, Y, None, "other"), "args"),
    ],
)
def test_several_arguments_reach_the_stages_by_place_and_by_name(example: Any, call: str | None) -> None:
    model = Two()
    pieces = cut(model, 3, example, call=call)
    expected = model(**example) if isinstance(example, dict) else model(*example)
    assert torch.equal(through(pieces, model, example), expected)
    assert next(layer.name for layer in profile(model, example, 1, call)) == "a"


def test_what_is_no_tensor_is_part_of_the_cut() -> None:
    """A number that the stages have by heart must not differ from the one a later batch brings."""
    pieces = cut(Two(), 2, {"x": X, "y": Y, "times": 3})
    with pytest.raises(
        BadInput, match=r"cut for inputs with \(3,\) beside their tensors but got \(4,\); give what chan"
    ):
        pieces.flatten({"x": X, "y": Y, "times": 4})
    with pytest.raises(BadInput, match="cut for inputs of 2 tensors but got 1"):
        pieces.flatten({"x": X})


def test_a_call_that_does_not_fit_is_refused() -> None:
    with pytest.raises(BadInput, match=r'call="kwargs" needs inputs with names'):
        cut(Two(), 2, (X, Y), call="kwargs")
    with pytest.raises(BadInput, match="call must be"):
        profile(Two(), (X, Y), call="star")


class OwnLoss(Two):
    """A loss made inside the forward, and beside it what no stage could be handed."""

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Any]:  # type: ignore[override]
        out = nn.ReLU()(super().forward(x, y))
        return {"loss": nn.MSELoss()(out, y), "cache": object()}


def test_of_an_output_with_its_loss_the_loss_alone_is_taken() -> None:
    """Models of transformers make nn.CrossEntropyLoss() in their forward and return caches: neither could be traced."""
    model = OwnLoss()
    pieces = cut(model, 3, (X, Y), call=Calling("args").needed)
    assert torch.equal(through(pieces, model, (X, Y)), model(X, Y)["loss"])
    with pytest.raises(Refused, match="hands on a value of type object"):
        cut(model, 3, (X, Y))


class Fresh(Two):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        weight = torch.tensor([1.0, 2, 3, 4, 5, 6, 7, 8])
        return nn.CrossEntropyLoss(weight)(nn.Linear(8, 8)(self.b(self.a(x))), x.argmax(1))


def test_modules_made_in_the_forward_are_made_again_in_every_step() -> None:
    model = Fresh()
    pieces = cut(model, 2, X)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        expected = [model(X) for _ in range(2)]
        torch.manual_seed(5)
        assert [through(pieces, model, X) for _ in range(2)] == expected
    assert expected[0] != expected[1]


class Shapes(Two):
    """Asks for a shape and a type at its start, and uses them at its end, as GPT-2 does."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        shape, lowest = x.size(), torch.finfo(x.dtype).min
        h = self.c(self.b(self.a(x).flatten()[None].view(-1, 8)))
        return torch.where(h > lowest, h, 0.0).view(shape).sum(-1, keepdim=True).expand((*shape[:-1], shape[-1]))


def test_shapes_cross_cuts() -> None:
    model = Shapes()
    pieces = cut(model, 3, X, ["b", "c"])
    for input in (X, X[:3]):
        assert torch.equal(through(pieces, model, input), model(input))


class Returned(nn.Module):
    def __init__(self, inner: Callable[..., Any]):
        super().__init__()
        self.first, self.inner = nn.Linear(8, 8), inner

    def forward(self, x: Tensor, y: Tensor) -> Any:
        return self.inner(self.first(x), y)


class Taken(nn.Module):
    """Cannot be opened: what it returns is a value as a whole."""

    def __init__(self, name: str | None):
        super().__init__()
        self.last, self.name = nn.Linear(8, 8), name

    def forward(self, x: Tensor, y: Tensor) -> Any:
        loss = F.mse_loss(self.last(x) if float(x.sum()) > -1e9 else x, y)
        return {self.name: loss} if self.name else (loss, x)


@pytest.mark.parametrize("name", ["loss", None])
def test_a_loss_is_found_in_the_output_of_a_module_taken_whole(name: str | None) -> None:
    model = Returned(Taken(name))
    pieces = cut(model, 2, (X, Y), call=Calling("args").needed)
    expected = model(X, Y)["loss"] if name else model(X, Y)[0]
    assert torch.equal(through(pieces, model, (X, Y)), expected)


class Hooked(Two):
    """The hook's closure holds the model: a rank that has the first stage alone would read weights it has let go."""

    def __init__(self) -> None:
        super().__init__()
        self.a.register_forward_hook(lambda module, args, output: output * self.c.bias.mean())

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.c(self.b(self.a(x)))


def test_a_hook_that_reaches_into_the_model_is_refused() -> None:
    with pytest.raises(
        Refused, match=r'cut Hooked: "c\.bias" is used by a hook or a function that holds the model itself'
    ):
        cut(Hooked(), 2, X)


class Sparse(Two):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.c(torch.sparse.mm(self.a(x).to_sparse(), self.b.weight))


def test_sparse_tensors_stay_within_a_stage() -> None:
    model = Sparse()
    pieces = cut(model, 3, X)
    assert torch.equal(through(pieces, model, X), model(X))
    with pytest.raises(Refused, match=r"stages: 5, layers: 3"):
        cut(model, 5, X)
