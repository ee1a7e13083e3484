"""Models that write, count, remember or draw in their forward pass, under strategies that cut models or split batches."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

import manyhands as mh
from tests.conftest import quick_fit
from tests.strategies.unprepared import (
    CLASSES,
    FEATURES,
    THREADS,
    Net,
    check,
    task_of,
)


class Teacher(nn.Module):
    """BYOL: the teacher follows the student in every forward, and begins as its copy."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = nn.Linear(FEATURES, 8), nn.Linear(FEATURES, 8).requires_grad_(False)
        self.teacher.load_state_dict(self.student.state_dict())
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.teacher.weight.lerp_(self.student.weight, 0.1)
        self.teacher.bias.data.copy_(self.student.bias.data)
        return self.head(torch.tanh(self.student(x)) + self.teacher(x))


def test_parameters_written_in_forward() -> None:
    """The stage that wrote them and the one that used them held different copies."""
    check(task_of(Teacher), "model_parallel", "pipeline:chunks=1")
    with pytest.raises(
        mh.Refused, match=r'writes the parameter "teacher.bias" each time; use model_parallel, or chunks=1'
    ):
        quick_fit(task_of(Teacher), "pipeline", ranks=2)


class Counts(Net):
    def forward(self, x: Tensor) -> Any:
        self.calls = getattr(self, "calls", 0) + 1
        return super().forward(x) * (1 + self.calls)


class Remembers(Net):
    def __init__(self) -> None:
        super().__init__()
        self.before: Any = None

    def forward(self, x: Tensor) -> Any:
        hidden = self.a(x)
        seen = hidden if self.before is None else hidden + self.before
        self.before = hidden.detach().mean(0)
        return self.b(seen)


class Replaces(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(32))

    def forward(self, x: Tensor) -> Any:
        hidden = self.a(x)
        self.mean = 0.9 * self.mean + 0.1 * hidden.detach().mean(0)
        return self.b(hidden - self.mean)


class Inside(nn.Module):
    """The same in a module of its own."""

    def __init__(self, model: type[Net]) -> None:
        super().__init__()
        self.front, self.inner = nn.Linear(FEATURES, FEATURES), model()

    def forward(self, x: Tensor) -> Any:
        return self.inner(torch.tanh(self.front(x)))


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Counts, 'Counts: its forward keeps state in the attribute "calls"'),
        (Remembers, 'Remembers: its forward keeps state in the attribute "before"'),
        (Replaces, 'Replaces: its forward replaces its buffer "mean" by another tensor; write into it'),
    ],
)
def test_state_between_calls(model: type[Net], reason: str) -> None:
    """It was baked into the stages as the example left it, or the refusal spoke of the number of samples."""
    with pytest.raises(mh.Refused, match=reason):
        quick_fit(task_of(model), "model_parallel", ranks=2)
    check(task_of(partial(Inside, model)), "model_parallel")  # whole on one stage it keeps what it likes


class Steps(Net):
    """The learning rate's neighbour in many recipes: a buffer that counts, written with `+=`."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.ones(()))

    def forward(self, x: Tensor) -> Any:
        self.steps += 1
        self.steps *= 1.5
        return super().forward(x) / self.steps


def test_a_buffer_that_counts_is_written_by_its_stage() -> None:
    """`+=` became a sum that nobody kept, and the refusal said that the buffer was no tensor."""
    check(task_of(Steps), "model_parallel", "hybrid:replicas=1,stages=2")


class Keeps(Net):
    def forward(self, x: Tensor) -> Any:
        self.last = self.a(x)  # for pictures; nobody reads it
        return self.b(torch.tanh(self.last))


def test_what_is_only_kept_for_others_to_look_at_is_no_state() -> None:
    check(task_of(Keeps), "model_parallel")


class Skips(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.front, self.head = nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.front(x)
        return self.head(hidden if random.random() < 0.5 else torch.tanh(hidden))


def test_a_branch_on_pythons_random_is_not_baked_in() -> None:
    with pytest.raises(mh.Refused, match=r"Skips: its forward draws numbers that are no tensors \(random"):
        quick_fit(task_of(Skips), "model_parallel", ranks=2)


class Hooked(Net):
    def __init__(self) -> None:
        super().__init__()
        self.a.weight.register_hook(lambda gradient: gradient * 0.5)


def test_hooks_on_parameters_see_gradients_that_come_late() -> None:
    """Weight gradients that a pipeline makes by itself went past them."""
    check(task_of(Hooked), "pipeline")


def parametrised() -> nn.Module:
    model = Net()
    weight_norm(model.a)
    return model


def test_a_model_that_cannot_be_pickled_is_tried_all_the_same() -> None:
    check(task_of(parametrised), *THREADS)


# ---------------------------------------------------------------- optimizers


class Marked(Net):
    def __init__(self) -> None:
        super().__init__()
        self.a.weight.fast = True  # type: ignore[assignment]


def by_name_and_mark(named: Any) -> torch.optim.Optimizer:
    """Groups by name, one of which no stage but the last has anything of, and by an attribute of the parameter."""
    found = dict(named)
    fast = [(name, p) for name, p in found.items() if getattr(p, "fast", False)]
    rest = [(name, p) for name, p in found.items() if not hasattr(p, "fast") and name != "b.bias"]
    groups = [{"params": [("b.bias", found["b.bias"])], "lr": 0.5}, {"params": fast, "lr": 0.3}, {"params": rest}]
    return torch.optim.SGD(groups, lr=0.05, momentum=0.9)


def test_groups_by_name_and_by_attribute() -> None:
    """torch refuses groups that are empty, and the factory names that are elsewhere."""
    check(
        task_of(Marked, optimizer=by_name_and_mark), "hybrid:replicas=2,stages=2,chunks=2", "parameter_server:servers=2"
    )
