"""What a plain script has at hand becomes a Task that trains as its loop did."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim import lr_scheduler as schedules
from torch.utils.data import DataLoader, TensorDataset

import manyhands as mh
from tests.conftest import quick_fit

EPOCHS = 3


def parts(kind: type[Optimizer] = AdamW, **options: Any) -> tuple[nn.Sequential, DataLoader, Optimizer]:
    """A model with two groups of parameters and a layer that is not trained. A batch is all there is, in any order."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5), nn.Linear(5, 3))
    samples = TensorDataset(torch.randn(48, 6), torch.randint(3, (48,)))
    groups = [{"params": model[0].parameters(), "lr": 0.02}, {"params": [*model[2].parameters()], "weight_decay": 0.0}]
    return model, DataLoader(samples, batch_size=48, shuffle=True), kind(groups, **{"lr": 0.01, **options})


def script(model: nn.Module, loader: DataLoader, optimizer: Optimizer, schedule: Any, per: str) -> None:
    """The loop that people write."""
    for _ in range(EPOCHS):
        for input, target in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(input), target).backward()
            optimizer.step()
            if per == "update":
                schedule.step()
        if per == "epoch":
            schedule.step()


def apart(run: mh.Run, model: nn.Module) -> float:
    assert run.weights is not None
    return max(float((run.weights[name] - value).abs().max()) for name, value in model.state_dict().items())


SCHEDULES = {
    "step": (lambda optimizer: schedules.StepLR(optimizer, 1, gamma=0.5), "epoch"),
    "cosine": (lambda optimizer: schedules.CosineAnnealingLR(optimizer, 4), "epoch"),
    "lambda": (lambda optimizer: schedules.LambdaLR(optimizer, [lambda n: 0.9**n, lambda n: 1 / (1 + n)]), "update"),
    "one cycle": (lambda optimizer: schedules.OneCycleLR(optimizer, 0.1, total_steps=EPOCHS + 1), "update"),
    "chain": (
        lambda optimizer: schedules.ChainedScheduler(
            [schedules.LinearLR(optimizer, 0.1, 1.0, 2), schedules.ExponentialLR(optimizer, 0.9)], optimizer
        ),
        "update",
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_optimizer_and_schedule_go_on_as_in_the_script(name: str) -> None:
    model, loader, optimizer = parts()
    make, per = SCHEDULES[name]
    schedule = make(optimizer)
    task = mh.from_loader(model, loader, nn.CrossEntropyLoss(), optimizer, schedule=schedule, per=per, epochs=EPOCHS)
    assert task.batch_size == 48
    run = quick_fit(task)
    script(model, loader, optimizer, schedule, per)
    assert apart(run, model) < 1e-6


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "parameter_server"])
def test_parameters_that_the_optimizer_does_not_hold_stay_as_they_are(strategy: str) -> None:
    model, loader, optimizer = parts()
    schedule = schedules.StepLR(optimizer, 1, gamma=0.5)
    run = quick_fit(
        mh.from_loader(model, loader, nn.CrossEntropyLoss(), optimizer, schedule=schedule, epochs=EPOCHS),
        strategy,
        ranks=2,
    )
    assert run.weights is not None
    assert torch.equal(run.weights["3.weight"], model[3].weight)
    script(model, loader, optimizer, schedule, "epoch")
    assert apart(run, model) < 1e-6


def test_functions_are_taken_as_they_are() -> None:
    _, loader, _ = parts()
    task = mh.from_loader(
        lambda: nn.Linear(6, 3), loader, nn.functional.cross_entropy, partial(SGD, lr=0.1), test=loader, seed=3
    )
    assert task.seed == 3
    assert quick_fit(task).test["samples"] == 48  # type: ignore[index]


class Closed(SGD):
    """An optimizer whose constructor keeps something to itself."""

    def __init__(self, params: Any, secret: float, lr: float = 0.1):
        super().__init__(params, lr)


def updated() -> Optimizer:
    model, loader, optimizer = parts()
    script(model, loader, optimizer, None, "never")
    return optimizer


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "used": ({"optimizer": updated()}, "the AdamW has made updates already"),
    "foreign": ({"optimizer": parts()[2]}, "the AdamW holds parameters that are not the model's"),
    "factory": ({"model": lambda: nn.Linear(6, 3)}, "the optimizer belongs to a model that was made already"),
    "function": (
        {"optimizer": partial(SGD, lr=0.1), "schedule": schedules.StepLR(parts()[2], 1)},
        "the StepLR belongs to an optimizer that was made already",
    ),
    "another": ({"schedule": schedules.StepLR(parts()[2], 1)}, "the StepLR is of another optimizer"),
    "per": ({"per": "batch"}, r'per says when the schedule moves on: "epoch" or "update" \(found \'batch\'\)'),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals(case: str) -> None:
    changes, message = REFUSALS[case]
    model, loader, optimizer = parts()
    given = {"model": model, "loader": loader, "loss": nn.CrossEntropyLoss(), "optimizer": optimizer, **changes}
    with pytest.raises(mh.BadInput, match=message):
        mh.from_loader(**given)


def test_a_schedule_that_was_not_given_is_missed() -> None:
    model, loader, optimizer = parts()
    schedules.OneCycleLR(optimizer, 0.1, total_steps=3)
    with pytest.raises(mh.BadInput, match="has a learning rate schedule that was not given"):
        mh.from_loader(model, loader, nn.CrossEntropyLoss(), optimizer)


def test_a_schedule_that_has_moved_is_refused() -> None:
    model, loader, optimizer = parts()
    schedule = schedules.StepLR(optimizer, 1)
    optimizer.step()
    schedule.step()
    optimizer.state.clear()
    with pytest.raises(mh.BadInput, match=r"the StepLR has moved on already \(steps: 1\)"):
        mh.from_loader(model, loader, nn.CrossEntropyLoss(), optimizer, schedule=schedule)


def test_an_optimizer_that_does_not_say_how_it_was_made_is_refused() -> None:
    model, loader, optimizer = parts(Closed, secret=1.0)
    with pytest.raises(mh.BadInput, match='Closed does not say what its "secret" was'):
        mh.from_loader(model, loader, nn.CrossEntropyLoss(), optimizer)
