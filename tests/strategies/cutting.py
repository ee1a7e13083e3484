"""What the tests of model_parallel, pipeline and hybrid have in common: models that are awkward to cut."""

from __future__ import annotations

import os
import time
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import manyhands as mh
from tests.conftest import distance, ends_soon, make_task, mlp, quick_fit
from tests.strategies.driving import halving, with_memory


def frozen_first() -> nn.Module:
    """The first two layers are not trained, so nothing comes back to the first stage."""
    model = mlp()
    for parameter in [*model[0].parameters(), *model[2].parameters()]:  # type: ignore[index]
        parameter.requires_grad_(False)
    return model


def frozen_last() -> nn.Module:
    model = mlp()
    for parameter in model[4].parameters():  # type: ignore[index]
        parameter.requires_grad_(False)
    return model


class Detached(nn.Module):
    """No gradient passes the middle, though what crosses there wants one; `spare` is not used at all."""

    def __init__(self) -> None:
        super().__init__()
        self.front, self.middle, self.head = nn.Linear(20, 16), nn.Linear(16, 16), nn.Linear(16, 3)
        self.spare = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.front(x))
        return self.head(torch.relu(self.middle(hidden.detach())))


class Picks(nn.Module):
    """Integers and booleans that are made in the front are used at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.front, self.middle, self.head = nn.Linear(20, 16), nn.Linear(16, 16), nn.Linear(16, 3)
        self.rows = nn.Embedding(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.front(x))
        largest, positive = hidden.argmax(1), hidden[:, :1] > 0
        hidden = torch.tanh(self.middle(hidden))
        return self.head(hidden) + self.rows(largest) * positive


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(20, 8), nn.BatchNorm1d(8)
        self.second, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.second(torch.relu(self.norm(self.first(x))))))


class Gate(nn.Module):
    """Branches on the contents of its input, so that it cannot be cut."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(20, 3), nn.Linear(20, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.one(x) if x.sum() > 0 else self.two(x)


NAP_MS = 4


class Nap(torch.autograd.Function):
    """Time that passes without work: NAP_MS a sample forward, nothing backward. Long, so that a busy machine hides it not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        time.sleep(NAP_MS / 1000 * len(x))
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


class Sleepy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(20, 20)

    def forward(self, x: Tensor) -> Tensor:
        return Nap.apply(self.linear(x))  # type: ignore[no-any-return]


def sleepy(layers: int = 2) -> nn.Module:
    return nn.Sequential(*[Sleepy() for _ in range(layers)], nn.Linear(20, 3))


_calls = 0


class Failing(torch.autograd.Function):
    """A bad day in the fifth pass on a rank."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        global _calls
        _calls += "RANK" in os.environ
        if _calls == 5:
            raise ValueError("a bad day")
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


class Fails(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(20, 20)

    def forward(self, x: Tensor) -> Tensor:
        return Failing.apply(self.linear(x))  # type: ignore[no-any-return]


def one_group_each(named: Any) -> torch.optim.Optimizer:
    """Weights and biases apart, each with a rate of its own; a stage may have one kind only."""
    kinds: dict[str, list[Any]] = {"weight": [], "bias": []}
    for name, parameter in named:
        kinds["bias" if name.endswith("bias") else "weight"].append((name, parameter))
    rates = {"weight": 0.05, "bias": 0.1}
    groups = [{"params": found, "lr": rates[kind]} for kind, found in kinds.items() if found]
    return torch.optim.SGD(groups, lr=0.05, momentum=0.9, weight_decay=1e-3)


RECIPE: dict[str, Any] = {"accumulate": 3, "clip": 0.05, "epochs": 1}
AWKWARD = {"frozen_first": frozen_first, "frozen_last": frozen_last, "detached": Detached, "picks": Picks}


@cache
def _alone(model: str) -> tuple[mh.Run, mh.Task]:
    """What `single` makes of an awkward model, or of the recipe below: once for all strategies."""
    if model == "recipe":
        task = make_task("tied", optimizer=with_memory, schedule=halving)
        return quick_fit(task, **RECIPE), task
    task = make_task(model=AWKWARD[model], optimizer=one_group_each)
    return quick_fit(task, max_steps=30), task


def check_awkward_models(strategy: str, ranks: int, model: str) -> None:
    """Weight decay tells a gradient of zeros from none at all."""
    one, task = _alone(model)
    many = quick_fit(task, strategy, ranks=ranks, max_steps=30)
    assert distance(one, many) <= 1e-6
    assert many.losses == pytest.approx(one.losses, abs=1e-5)


def check_recipe(strategy: str, ranks: int) -> None:
    """Accumulation with a short end, clipping with a tied weight, momentum and a schedule, over a whole epoch."""
    one, task = _alone("recipe")
    many = quick_fit(task, strategy, ranks=ranks, **RECIPE)
    assert distance(one, many) <= 1e-6
    assert many.updates == one.updates == 12
    assert many.samples == one.samples == 1003
    assert many.epochs[0]["learning_rate"] == one.epochs[0]["learning_rate"]
    assert many.losses == pytest.approx(one.losses, abs=1e-5)


def check_bf16(strategy: str, ranks: int) -> None:
    run = quick_fit(make_task(), strategy, ranks=ranks, epochs=1, precision="bf16")
    assert run.exact is False
    assert run.exact_reason is not None
    assert sum(run.losses[-5:]) < sum(run.losses[:5])  # type: ignore[arg-type]


def check_a_failing_stage_ends_the_run(strategy: str, ranks: int, step: int) -> None:
    """Stage 1 of 3 fails in its forward pass."""
    task = make_task(model=lambda: nn.Sequential(nn.Linear(20, 20), Fails(), nn.Linear(20, 3)))
    message = rf"rank 1 of {ranks} failed in step {step}, forward: ValueError: a bad day"
    with ends_soon(), pytest.raises(mh.RankFailed, match=message):
        quick_fit(task, strategy, ranks=ranks)
