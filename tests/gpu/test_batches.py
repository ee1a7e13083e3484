"""Batches of any kind reach the GPU: through locked memory or from data that lives there, in their types, with None in them."""

from __future__ import annotations

from collections import OrderedDict, UserDict
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.conftest import distance, make_task, quick_fit

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
X = torch.randn(203, 20, generator=torch.Generator().manual_seed(1))
Y = (X.sum(1) > 0).long()


@dataclass(frozen=True, slots=True)
class Frozen:
    x: Any
    y: Any
    none: Any = None


@dataclass
class Output(OrderedDict[str, Any]):
    """As transformers' outputs: a dataclass and a dictionary at once, which refuses `update`."""

    x: Any = None
    y: Any = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            super().__setitem__(name, value)

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        super().__setattr__(key, value)

    def update(self, *args: Any, **keywords: Any) -> None:
        raise Exception("no")

    def __reduce__(self) -> Any:
        return type(self), (self.x, self.y)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(20, 3)

    def forward(self, batch: Any) -> Tensor:
        return self.layer(batch["x"] if isinstance(batch, dict | UserDict) else batch.x)


KINDS: dict[str, Callable[[Any, Any], Any]] = {
    "dict": lambda x, y: {"x": x, "y": y, "none": None},
    "own mapping": lambda x, y: UserDict(x=x, y=y),
    "output": lambda x, y: Output(x, y),
    "dataclass": lambda x, y: Frozen(x, y),
    "namespace": lambda x, y: SimpleNamespace(x=x, y=y, none=None),
}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_samples_of_any_kind_reach_the_gpu(kind: str, workers: int) -> None:
    """torch's own way into locked memory passes over dataclasses and fails on transformers' outputs."""
    samples = [KINDS[kind](x, y) for x, y in zip(X, Y, strict=True)]
    task = make_task(model=Net, train=samples, test=samples, target="y", epochs=1)
    there = quick_fit(task, device="cuda", loader_workers=workers)
    assert distance(quick_fit(task), there) < 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_columns_of_any_kind_live_on_the_gpu(kind: str) -> None:
    task = make_task(model=Net, train=KINDS[kind](X, Y), test=None, target="y", epochs=2)
    assert distance(quick_fit(task), quick_fit(task, device="cuda")) < 1e-5


@pytest.mark.parametrize("strategy", ["single", "ddp", "pipeline"])
@pytest.mark.parametrize("train", [X, (X, None), [(x, None) for x in X]], ids=["tensor", "pair", "samples"])
def test_nothing_is_needed_where_there_is_no_target(train: Any, strategy: str) -> None:
    model = lambda: nn.Sequential(nn.Linear(20, 8), nn.Tanh(), nn.Linear(8, 20))  # noqa: E731
    task = make_task(model=model, train=train, test=train, loss=lambda output: output.pow(2).mean(), epochs=1)
    ranks = 1 if strategy == "single" else 2
    assert distance(quick_fit(task), quick_fit(task, strategy, ranks=ranks, device="cuda")) < 1e-5
