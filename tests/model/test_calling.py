"""How a model is called: found from forward's signature and the kind of input, said in the record, or refused in a line."""

from __future__ import annotations

import functools
from collections import UserDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyhands import Task
from manyhands.errors import BadInput
from manyhands.model.calling import Calling, own_loss

X, Y = torch.randn(2, 3), torch.randn(2, 3)
Pair = namedtuple("Pair", ("x", "y"))
Swapped = namedtuple("Swapped", ("y", "x"))
Unnamed = namedtuple("Unnamed", ("first", "second"))


@dataclass
class Both:
    x: Tensor
    y: Tensor


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


class One(nn.Module):
    def forward(self, batch: Any) -> Any:
        return batch


class Two(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x - y


class Decorated(nn.Module):
    @wrapped
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x - y


class Masked(nn.Module):
    def forward(self, x: Tensor, mask: Any = None) -> Any:
        return x


class Open(nn.Module):
    def forward(self, *inputs: Any) -> Any:
        return inputs


class ByName(nn.Module):
    def forward(self, **batch: Any) -> Any:
        return batch


class Setting(nn.Module):
    def forward(self, x: Any, *, scale: float) -> Any:
        return x


class Optional(nn.Module):
    def forward(self, x: Any = None, y: Any = None) -> Any:
        return x


def bound() -> nn.Module:
    model = Two()
    model.forward = functools.partial(model.forward)  # type: ignore[method-assign]
    return model


def calling(model: nn.Module, input: Any, **fields: Any) -> Calling:
    fields = {"loss": F.mse_loss, **fields}
    task = Task(model=model, train=(X, Y), optimizer=torch.optim.SGD, **fields)
    return Calling.of(task, model, lambda: (input, Y))


@pytest.mark.parametrize(
    ("model", "input", "call"),
    [
        (One(), X, "one"),
        (One(), (X, Y), "one"),
        (One(), {"x": X, "y": Y}, "one"),
        (Two(), (X, Y), "args"),
        (Two(), [X, Y], "args"),
        (Two(), {"y": Y, "x": X}, "kwargs"),
        (Two(), UserDict({"y": Y, "x": X}), "kwargs"),
        (Two(), Pair(X, Y), "kwargs"),
        (Two(), Swapped(Y, X), "kwargs"),
        (Two(), Unnamed(X, Y), "args"),
        (Two(), Both(X, Y), "kwargs"),
        (Decorated(), (X, Y), "args"),
        (Decorated(), {"x": X, "y": Y}, "kwargs"),
        (bound(), {"x": X, "y": Y}, "kwargs"),
        (Masked(), (X, Y), "one"),
        (Masked(), {"x": X}, "kwargs"),
        (Masked(), {"x": X, "mask": None}, "kwargs"),
        (Masked(), {"others": X}, "one"),
        (Open(), (X, Y), "args"),
        (Open(), X, "one"),
        (ByName(), {"a": X}, "kwargs"),
        (ByName(), X, "one"),
        (Setting(), (X, Y), "one"),
        (Optional(), {"y": Y}, "kwargs"),
        (Optional(), (X, Y), "one"),
    ],
)
def test_the_call_is_found(model: nn.Module, input: Any, call: str) -> None:
    found = calling(model, input)
    assert found.call == call
    if call != "one":
        found.output(model, input)


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_what_scripted_models_and_losses_take_is_in_their_schema() -> None:
    scripted = torch.jit.script(Two())
    assert calling(scripted, (X, Y)).call == "args"
    assert calling(scripted, {"y": Y, "x": X}).call == "kwargs"
    assert calling(scripted, (X, Y), loss=torch.jit.trace(lambda output: output.mean(), X)).alone


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_compiled_model_is_called_as_what_was_compiled() -> None:
    compiled = torch.compile(Two(), backend="eager")
    assert calling(compiled, (X, Y)).call == "args"
    assert calling(compiled, {"y": Y, "x": X}).call == "kwargs"


def test_names_decide_where_an_input_has_some() -> None:
    assert torch.equal(calling(Two(), Swapped(Y, X)).output(Two(), Swapped(Y, X)), X - Y)


def test_an_explicit_call_wins() -> None:
    assert calling(Masked(), (X, Y), call="args").call == "args"
    assert calling(One(), {"x": X}, call="one").call == "one"


def test_an_example_that_cannot_be_read_is_left_to_others() -> None:
    def unreadable() -> Any:
        raise OSError("no such file")

    task = Task(model=Two, train=(X, Y), loss=F.mse_loss, optimizer=torch.optim.SGD)
    assert Calling.of(task, Two(), unreadable).call == "one"
    assert Calling.of(task.replace(call="args"), Two(), unreadable).call == "args"


@pytest.mark.parametrize(
    ("model", "input", "call", "line"),
    [
        (
            Two(),
            {"x": X, "y": Y, "id": X},
            None,
            r'Two\.forward has no parameter for "id" .*keys: x, y, id.*call="one"',
        ),
        (Two(), {"x": X, "y": Y, "id": X}, "kwargs", r'has no parameter for "id"'),
        (Optional(), {"x": X, "z": Y}, None, r'Optional\.forward has no parameter for "z"'),
        (Two(), (X, Y), "kwargs", r'call="kwargs" needs inputs with names: .* \(found tuple\)'),
        (Two(), X, "args", r'call="args" needs inputs in order: a tuple or list \(found Tensor\)'),
        (Two(), {"x": X, "y": Y}, "args", r'call="args" needs .* \(found dict\)'),
        (
            Two(),
            (X, Y),
            "one",
            r'call="one" means model\(input\), which Two\.forward\(x, y\) does not take .*tuple of 2',
        ),
        (Two(), (X, Y, X), "args", r"too many positional arguments; the input is a tuple of 3"),
        (Two(), {"x": X}, "kwargs", r"missing a required argument: 'y'"),
    ],
)
def test_a_wrong_call_is_refused_in_a_line(model: nn.Module, input: Any, call: str | None, line: str) -> None:
    with pytest.raises(BadInput, match=line):
        calling(model, input, call=call)


@pytest.mark.parametrize(
    ("loss", "alone"),
    [
        (F.mse_loss, False),
        (nn.MSELoss(), False),
        (lambda output: output.mean(), True),
        (functools.partial(F.mse_loss, target=Y), True),
        (functools.partial(F.mse_loss, Y), False),
        (lambda *both: both[0].mean(), False),
        (torch.dist, False),
    ],
)
def test_whether_a_loss_takes_the_output_alone(loss: Any, alone: bool) -> None:
    assert calling(Two(), (X, Y), loss=loss).alone is alone


@pytest.mark.parametrize("loss", [lambda output, target, weight: output, lambda: 0])
def test_a_loss_that_cannot_be_called_with_output_and_target_is_refused(loss: Any) -> None:
    with pytest.raises(BadInput, match=r"task\.loss is called as loss\(output, target\).*functools\.partial"):
        calling(Two(), (X, Y), loss=loss)


@dataclass
class Output:
    loss: Any


NUMBER = torch.tensor(2.0)


@pytest.mark.parametrize(
    "output", [NUMBER, Output(NUMBER), {"loss": NUMBER}, (NUMBER, X), [NUMBER], Output(NUMBER[None])]
)
def test_the_loss_of_the_model_itself(output: Any) -> None:
    assert float(own_loss(output)) == 2.0
    assert float(Calling(loss=None).loss_of(output, None)) == 2.0
    assert float(Calling(loss=None).needed(lambda x: output, X)) == 2.0


@pytest.mark.parametrize(
    ("output", "line"),
    [
        (X, r"gives a tensor of shape \(2, 3\) where one number is needed"),
        ({"logits": X}, r"output \(dict\) holds none; models that compute one need the labels"),
        (Output(None), r"output \(Output\) holds none; models that compute one need the labels"),
        ("text", r"output \(str\) holds none; give task\.loss"),
    ],
)
def test_a_missing_loss_is_named(output: Any, line: str) -> None:
    with pytest.raises(BadInput, match=rf"the task has no loss, and the model.*{line}"):
        own_loss(output)
