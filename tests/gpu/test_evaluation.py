"""Evaluations on a GPU: recorded from the second on, with the figures of ordinary passes."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import manyhands as mh
from manyhands.strategies.job import StepSettings
from manyhands.training.build import build
from manyhands.training.evaluation import Evaluation
from tests.conftest import quick_fit
from tests.gpu.test_capture import Small, images, task_of

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
CUDA = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def whole_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def evaluation_of(task: mh.Task, device: torch.device = CUDA, **settings: Any) -> Evaluation:
    job = build(task, StepSettings(**settings))
    assert job.test is not None
    return Evaluation(job, job.model, job.test, device)


def moved(evaluation: Evaluation, by: float) -> None:
    """Other weights, loaded as at the end of an epoch."""
    state = evaluation.model.state_dict()
    evaluation.model.load_state_dict(
        {name: value.cpu() + by if value.is_floating_point() else value.cpu() for name, value in state.items()}
    )


class Largest:
    """Gathers outputs as they are: they must not change behind its back."""

    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def update(self, output: Tensor, target: Tensor) -> None:
        self.seen.append(output)

    def compute(self) -> Tensor:
        return torch.cat(self.seen).max(0).values


def counted(target: Tensor) -> Tensor:
    return (target != 1).sum()


def same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert value == (pytest.approx(other[name], rel=1e-5) if value is not None else other[name]), name


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"metrics": {"mean": lambda o, t: o.max(), "number": lambda o, t: float(len(o)), "largest": Largest}},
        {"weight": counted, "loss": partial(nn.functional.cross_entropy, ignore_index=1)},
        {"eval_batch_size": 100},
        {"model": partial(Small, dropout=0.5)},
    ],
    ids=["plain", "metrics", "weight", "batches of 100", "dropout"],
)
def test_recorded_evaluations_say_what_ordinary_ones_do(changes: dict[str, Any]) -> None:
    recorded, ordinary = evaluation_of(task_of(**changes)), evaluation_of(task_of(**changes), capture="off")
    host = evaluation_of(task_of(**changes), torch.device("cpu"))
    for number in range(4):
        found = recorded.figures()
        assert (recorded.recorded is not None) == (number > 0)
        same(found, ordinary.figures())
        same(found, host.figures())
        for evaluation in (recorded, ordinary, host):
            moved(evaluation, 0.01)
    assert ordinary.recorded is None


class Peeks(Small):
    """Looks at a value on the host."""

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        return out * 2 if out.sum().item() > 1e9 else out


class Counts(Small):
    """Keeps state between batches, in evaluation too."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("batches", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.batches += 1
        return super().forward(x) * self.batches


class Draws(Small):
    """Random in evaluation too."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(super().forward(x), 0.1, training=True)


@pytest.mark.parametrize("model", [Peeks, Counts, Draws])
def test_what_cannot_be_recorded_is_evaluated_all_the_same(model: type[nn.Module]) -> None:
    recorded, ordinary = evaluation_of(task_of(model=model)), evaluation_of(task_of(model=model), capture="off")
    for _ in range(3):
        found = []
        for evaluation in (recorded, ordinary):
            torch.cuda.manual_seed(5)
            found.append(evaluation.figures())
        same(*found)
    assert recorded.recorded is None


def test_data_that_is_read_sample_by_sample_and_few_batches_stay_ordinary() -> None:
    x, y = images()
    for changes in ({"test": list(zip(x, y, strict=True))}, {"eval_batch_size": 500}):
        evaluation = evaluation_of(task_of(**changes))  # type: ignore[arg-type]
        first, *others = (evaluation.figures() for _ in range(3))
        for other in others:
            same(first, other)
        assert evaluation.recorded is None


def test_tensors_that_loading_replaces_end_the_replays() -> None:
    """A recording reads the addresses it knew; weights put elsewhere would never be seen."""
    evaluation = evaluation_of(task_of())
    first = [evaluation.figures() for _ in range(3)][-1]
    layer = evaluation.model.net[-1]  # type: ignore[index]
    layer.bias = nn.Parameter(layer.bias.detach() + torch.tensor([9.0, 0, 0], device=CUDA))  # type: ignore[index]
    found = evaluation.figures()
    assert found["per_class"] != first["per_class"]
    same(found, evaluation_with(evaluation.model.state_dict()))


def evaluation_with(weights: dict[str, Tensor]) -> dict[str, Any]:
    return mh.evaluate(task_of(), {name: value.cpu() for name, value in weights.items()}, device="cuda")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_record_and_evaluate_agree(precision: str) -> None:
    """Dropout draws from the generator that a recording must not take away from the steps."""
    task = task_of(model=partial(Small, dropout=0.3), ema=0.9)
    run = quick_fit(task, device="cuda", precision=precision)
    assert run.capture is not None
    assert run.capture["reason"] is None
    assert run.test is not None
    assert run.weights is not None
    assert run.ema_weights is not None
    same(run.test, mh.evaluate(task, run.weights, device="cuda"))
    same(run.ema["test"], mh.evaluate(task, run.ema_weights, device="cuda"))  # type: ignore[index]
    untested = quick_fit(task.replace(test=None), device="cuda", precision=precision)
    assert run.losses == pytest.approx(untested.losses, rel=2e-3 if precision == "fp32" else 5e-2, abs=2e-4)


def test_steps_that_draw_go_on_after_a_recording_that_failed() -> None:
    class Refuses(Small):
        """Cannot be recorded in evaluation, though its steps can."""

        def forward(self, x: Tensor) -> Tensor:
            out = super().forward(x)
            if not self.training:
                torch.cuda.current_stream().synchronize()
            return out

    task = task_of(model=partial(Refuses, dropout=0.3))
    tested, untested = quick_fit(task, device="cuda"), quick_fit(task.replace(test=None), device="cuda")
    assert tested.capture is not None
    assert tested.capture["steps"] > 150
    assert tested.losses == pytest.approx(untested.losses, rel=2e-3, abs=2e-4)
