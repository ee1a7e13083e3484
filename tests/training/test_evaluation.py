"""Evaluations again and again: without a GPU, where a recording is its program run once more (tests/gpu has the rest)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import manyhands as mh
from manyhands.strategies.job import StepSettings
from manyhands.training.build import build
from manyhands.training.capture import recorded_pass
from manyhands.training.capture.graph import CannotRecord
from manyhands.training.evaluation import Evaluation
from tests.conftest import make_task, mlp

CPU = torch.device("cpu")


def evaluation_of(task: mh.Task) -> Evaluation:
    job = build(task, StepSettings())
    assert job.test is not None
    return Evaluation(job, job.model, job.test, CPU)


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry a replay."""
    made: list[int] = []

    def graph_of(program: Callable[[], None], device: torch.device) -> Callable[[], None]:
        program()

        def replay() -> None:
            made.append(1)
            program()

        return replay

    monkeypatch.setattr(recorded_pass, "_has_room", lambda device: True)
    monkeypatch.setattr(recorded_pass, "_generator_aside", lambda device: nullcontext())
    monkeypatch.setattr(recorded_pass, "refusing_waits", nullcontext)
    monkeypatch.setattr(recorded_pass, "graph_of", graph_of)
    monkeypatch.setattr(Evaluation, "_could_record", lambda self: True)
    return made


class Gathers:
    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def update(self, output: Tensor, target: Tensor) -> None:
        self.seen.append(output)

    def compute(self) -> Tensor:
        return torch.cat(self.seen).sum(0)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"metrics": {"mean": lambda o, t: o.max(), "gathered": Gathers}},
        {
            "weight": lambda target: (target != 1).sum(),
            "loss": partial(nn.functional.cross_entropy, ignore_index=1),
        },
    ],
    ids=["plain", "metrics", "weight"],
)
def test_whole_batches_are_replayed_from_the_second_evaluation_on(changes: dict[str, Any], replays: list[int]) -> None:
    evaluation = evaluation_of(make_task(**changes))
    first = evaluation.figures()
    assert not replays
    assert evaluation.figures() == first
    assert len(replays) == 1 + 33  # one that is compared; of 34 batches the last is short
    with torch.no_grad():
        evaluation.model[-1].bias += 1.0  # type: ignore[index]
    assert evaluation.figures() == mh.evaluate(make_task(**changes), evaluation.model.state_dict()) != first
    assert len(replays) == 1 + 2 * 33


class Place:
    """A recorded pass whose output is always in the same place."""

    def __init__(self, output: Tensor):
        self.output = output

    def valid(self) -> bool:
        return True

    def __call__(self, input: Tensor, target: Tensor) -> Tensor:
        return self.output


@pytest.mark.parametrize("gathers", [False, True])
def test_outputs_are_copied_for_metrics_that_keep_them_alone(gathers: bool) -> None:
    """A mean is taken at once; a copy of a language model's scores for it was as much memory again."""
    seen: list[bool] = []
    place = torch.zeros(30, 3)

    def mean(output: Tensor, target: Tensor) -> Tensor:
        seen.append(output is place)
        return output.max()

    evaluation = evaluation_of(make_task(metrics={"mean": mean, **({"gathered": Gathers} if gathers else {})}))
    evaluation.batch_size, evaluation.recorded = 30, Place(place)  # type: ignore[assignment]
    evaluation.figures()
    assert seen[:-1] == [not gathers] * 33


class Counts(nn.Module):
    """Keeps state between batches, in evaluation too."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(20, 3)
        self.register_buffer("batches", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.batches += 1
        return self.inner(x) * self.batches


class Draws(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(super().forward(x), 0.1, training=True)


@pytest.mark.parametrize("model", [Counts, partial(Draws, 20, 3)])
def test_passes_that_write_state_or_draw_are_not_recorded(model: Any, replays: list[int]) -> None:
    evaluation = evaluation_of(make_task(model=model))
    for _ in range(3):
        evaluation.figures()
    assert evaluation.recorded is None
    assert not replays


def test_a_recording_that_differs_is_not_used(replays: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_pass, "graph_of", lambda program, device: lambda: None)  # computes nothing
    evaluation = evaluation_of(make_task())
    assert evaluation.figures() == evaluation.figures() == evaluation.figures()
    assert evaluation.recorded is None


def test_a_full_device_is_not_asked_for_more(replays: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_pass, "_has_room", lambda device: False)
    evaluation = evaluation_of(make_task())
    assert evaluation.figures() == evaluation.figures()
    assert evaluation.recorded is None
    with pytest.raises(CannotRecord, match="memory is nearly full"):
        recorded_pass.RecordedPass(evaluation.model, lambda input, target: None, (None, None), torch.zeros(()))


def test_parameters_that_loading_replaces_end_the_replays(replays: list[int]) -> None:
    evaluation = evaluation_of(make_task())
    first = [evaluation.figures() for _ in range(2)][-1]
    made = len(replays)
    layer = evaluation.model[-1]  # type: ignore[index]
    layer.bias = nn.Parameter(layer.bias.detach() + 1.0 * torch.arange(3))
    assert evaluation.figures() != first
    assert evaluation.recorded is None
    assert len(replays) == made


class WritesItsInput(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        x.mul_(0.5)
        return super().forward(x)


@pytest.mark.parametrize("recording", [False, True])
def test_a_model_that_writes_to_its_input_leaves_the_test_set_alone(
    recording: bool, request: pytest.FixtureRequest
) -> None:
    """Batches were views of the data: every evaluation halved the caller's own test set."""
    if recording:
        request.getfixturevalue("replays")
    task = make_task(model=partial(WritesItsInput, 20, 3))
    before = task.test[0].clone()  # type: ignore[index]
    evaluation = evaluation_of(task)
    first, *others = (evaluation.figures() for _ in range(3))
    assert others == [first, first]
    assert torch.equal(task.test[0], before)  # type: ignore[index]


def test_batches_without_a_unit_are_left_out() -> None:
    """Their loss is 0 / 0."""
    x, y = make_task().test  # type: ignore[misc]
    y = torch.where(torch.arange(len(y)) < 60, -100, y)
    task = make_task(test=(x, y), weight=lambda target: (target != -100).sum())
    model = mlp()
    with torch.no_grad():
        expected = nn.functional.cross_entropy(model(x[60:]), y[60:])
    assert mh.evaluate(task, model.state_dict())["loss"] == pytest.approx(float(expected))
    empty = mh.evaluate(task.replace(test=(x[:60], y[:60])), model.state_dict())
    assert (empty["loss"], empty["accuracy"], empty["per_class"]) == (None, None, {})


def test_a_loss_of_one_number_in_a_row() -> None:
    """Trained with, it could not be evaluated: a number without dimensions takes in none with one."""
    task = make_task(loss=lambda output, target: nn.functional.cross_entropy(output, target).reshape(1))
    weights = mlp().state_dict()
    assert mh.evaluate(task, weights)["loss"] == mh.evaluate(make_task(), weights)["loss"]
