"""Metrics: means over samples, and figures that are gathered batch by batch."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import manyhands as mh
from tests.conftest import make_task, mlp, quick_fit

WEIGHTS = mlp().state_dict()
TEST = make_task().test


class Spread:
    """The largest output minus the smallest: no mean over samples."""

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale
        self.seen: list[Tensor] = []

    def reset(self) -> None:
        self.seen = []

    def update(self, output: Tensor, target: Tensor) -> None:
        self.seen.append(output)

    def compute(self) -> Tensor:
        every = torch.cat(self.seen)
        assert len(every) == 1003
        return self.scale * (every.max() - every.min())


class Gives:
    """Computes what it was made with."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def update(self, output: Tensor, target: Tensor) -> None:
        pass

    def compute(self) -> Any:
        return self.value


def figures(**metrics: Any) -> dict[str, Any]:
    return mh.evaluate(make_task(metrics=metrics), WEIGHTS)


def test_an_object_a_class_and_a_factory_give_the_same_and_none_is_changed() -> None:
    own = Spread()
    own.seen.append(torch.full((1, 3), 1e6))  # from before: gone with reset
    found = figures(object=own, kind=Spread, factory=partial(Spread, scale=1.0), mean=lambda o, t: o.max())
    with torch.no_grad():
        output = mlp_with(WEIGHTS)(TEST[0])  # type: ignore[index]
    assert found["object"] == found["kind"] == found["factory"] == pytest.approx(float(output.max() - output.min()))
    assert len(own.seen) == 1
    assert found["mean"] < output.max()
    assert found["accuracy"] is None


def mlp_with(weights: dict[str, Tensor]) -> nn.Module:
    model = mlp()
    model.load_state_dict(weights)
    return model


def test_what_compute_may_give() -> None:
    nested = {"a": torch.tensor([0.5, 0.25]), "b": {"c": 2}}
    found = mh.evaluate(make_task(metrics={"x": Gives(3), "y": Gives(nested), "": Gives({"z": None})}), WEIGHTS)
    assert {name: found[name] for name in ("x", "y_a", "y_b_c", "z")} == {
        "x": 3.0,
        "y_a": [0.5, 0.25],
        "y_b_c": 2.0,
        "z": None,
    }


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({"f1": lambda o, t: 1 / 0}, r"task.metrics\['f1'\] failed: ZeroDivisionError: division by zero"),
        ({"f1": Gives("much")}, r"task.metrics\['f1'\] failed: ValueError: could not convert"),
        (
            {"f1": lambda: 3},
            r"task.metrics\['f1'\] was called without arguments and gave a int; it must give an object",
        ),
        ({"per_class": Gives(1)}, r'task.metrics: "per_class" is a figure of the evaluation itself .*another name'),
        ({"accuracy": Gives(torch.ones(2))}, r'task.metrics: "accuracy" is a figure of the evaluation itself'),
    ],
)
def test_a_metric_that_cannot_be_computed_is_named(metrics: dict[str, Any], message: str) -> None:
    with pytest.raises(mh.BadInput, match=message):
        mh.evaluate(make_task(metrics=metrics), WEIGHTS)


def test_a_metric_that_fails_on_a_rank_ends_the_run_in_one_line() -> None:
    found = r"rank 0 of 2 failed in step 2, evaluation: .*task.metrics\['f1'\] failed: ZeroDivisionError"
    with pytest.raises(mh.RankFailed, match=found) as failure:
        quick_fit(make_task(metrics={"f1": lambda o, t: 1 / 0}), "ddp", ranks=2, max_steps=2)
    assert failure.value.run is not None
    assert failure.value.run.notes[:1] == [
        "tried on two samples, task.metrics['f1'] failed: ZeroDivisionError: division by zero; "
        "if it does so on whole batches, the run ends after its first epoch"
    ]


class Waits(Spread):
    """As torchmetrics do: they gather over ranks when they compute, unless told not to."""

    distributed_available_fn = staticmethod(torch.distributed.is_initialized)

    def compute(self) -> Tensor:
        if self.distributed_available_fn():
            raise RuntimeError("waits for ranks that do not evaluate")
        return super().compute()


@pytest.mark.parametrize("strategy", ["ddp", "hogwild"])
def test_one_rank_evaluates_every_sample_and_its_metrics_wait_for_nobody(strategy: str) -> None:
    """torchmetrics gathered over all ranks, of which only the first evaluates: ddp hung."""
    given = Waits()
    task, seen = make_task(metrics={"spread": given}, epochs=2), []
    run = quick_fit(task, strategy, ranks=2, on_epoch=lambda figures: seen.append(figures.test_spread))
    assert run.test is not None
    assert run.test["spread"] == mh.evaluate(task, run.weights)["spread"]  # type: ignore[arg-type]
    assert seen == [entry["test_spread"] for entry in run.epochs]
    assert given.seen == []


@pytest.mark.soak  # seconds to import, on every rank
def test_torchmetrics_objects() -> None:
    metrics = pytest.importorskip("torchmetrics.classification")
    collection = pytest.importorskip("torchmetrics").MetricCollection
    make = partial(metrics.MulticlassF1Score, num_classes=3)
    both = collection({"f1": make(average=None), "auroc": metrics.MulticlassAUROC(3)})
    task = make_task(metrics={"f1": make, "": both, "macro": make()}, epochs=1)
    run = quick_fit(task, "ddp", ranks=2)
    output = mlp_with(run.weights)(TEST[0])  # type: ignore[arg-type,index]
    assert run.test is not None
    assert run.test["macro"] == pytest.approx(float(make()(output, TEST[1])))  # type: ignore[index]
    assert len(run.test["f1"]) == 3  # the collection's key, under an empty name, came after
    assert 0 < run.test["auroc"] < 1
