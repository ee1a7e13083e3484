"""Bad tasks are refused with the field's name, before anything starts."""

from __future__ import annotations

import functools
import threading
from typing import Any

import pytest
import torch
from torch import nn

import manyhands as mh
from tests.conftest import make_task, quick_fit

SGD = functools.partial(torch.optim.SGD, lr=0.1)


class BuiltLate(nn.Module):
    """Its first layer is made when the width of the input is known, long after the optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.out, self.late = nn.Linear(8, 3), None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.late = self.late or nn.Linear(x.shape[1], 8)
        return self.out(self.late(x))


class Rated(torch.optim.SGD):
    def __init__(self, parameters: Any, rate: float):
        super().__init__(parameters, lr=rate)


class Locked(nn.Linear):
    """A lock neither travels nor can be copied."""

    def __init__(self) -> None:
        super().__init__(20, 3)
        self.lock = threading.Lock()


class SparseBuffer(nn.Linear):
    """A graph's adjacency as a sparse buffer, which neither memory that ranks share nor an evaluation can hold."""

    def __init__(self) -> None:
        super().__init__(20, 3)
        self.register_buffer("links", torch.eye(3).to_sparse())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 0}, r"task\.batch_size must be a whole number of at least 1 \(found 0\)"),
        ({"batch_size": 2.5}, r"task\.batch_size .* \(found 2\.5\)"),
        ({"epochs": 0}, r"task\.epochs must be a whole number of at least 1"),
        ({"seed": -1}, r"task\.seed must be a whole number of at least 0"),
        ({"loss": 3}, r"task\.loss must be callable or None \(found int 3\)"),
        (
            {"optimizer": torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1)},
            r"task\.optimizer must make an optimizer.*functools\.partial",
        ),
        ({"schedule": 1}, r"task\.schedule must be callable or None"),
        ({"model": 1}, r"task\.model must be a module or a function"),
        ({"ema": 1.0}, r"task\.ema must be above 0 and below 1, such as 0\.999 \(found 1\.0\)"),
        ({"eval_batch_size": True}, r"task\.eval_batch_size must be a whole number of at least 1"),
        ({"metrics": {"f1": 3}}, r"task\.metrics\['f1'\] must be callable"),
        (
            {"loss": nn.CrossEntropyLoss},
            r"the class CrossEntropyLoss, not an instance of it: use loss=nn\.CrossEntropyLoss\(\)",
        ),
        (
            {"model": nn.Linear},
            r"is the class Linear, which needs in_features, out_features: use model=lambda: nn\.Linear\(in_features=\.\.\., ",
        ),
        (
            {"model": lambda width: nn.Linear(20, width)},
            r"task\.model is the function <lambda>, which needs width: use model",
        ),
        ({"model": functools.partial(nn.Linear, 20)}, r"task\.model is the function partial, which needs out_features"),
        ({"optimizer": None}, r"task\.optimizer is missing; for example: optimizer=functools\.partial"),
        ({"optimizer": [SGD, SGD]}, r"task\.optimizer is a list of 2, but one optimizer .*a GAN, is not supported"),
        (
            {"optimizer": Rated},
            r"is the class Rated, which needs rate: use optimizer=functools\.partial\(Rated, rate=\.\.\.\)",
        ),
        ({"call": "kwarg"}, r"task\.call must be \"one\", .* \(found 'kwarg'\); did you mean \"kwargs\"\?"),
        ({"target": ["a"]}, r"task\.target must be the key of the target, or a tuple of keys \(found list"),
        ({"target": ()}, r"task\.target must be the key of the target"),
        ({"eval_batch_size": 0}, r"task\.eval_batch_size must be a whole number of at least 1"),
        ({"ema": 1}, r"task\.ema must be above 0 and below 1, such as 0\.999 \(found 1\)"),
    ],
)
def test_fields_are_checked_when_the_task_is_made(changes: dict, message: str) -> None:
    with pytest.raises(mh.BadInput, match=message):
        make_task(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": (torch.zeros(0, 20), torch.zeros(0).long())}, r"task\.train holds no samples"),
        ({"train": (torch.zeros(5, 20), torch.zeros(4).long())}, r"task\.train lengths differ: 5 and 4"),
        ({"train": 3}, r"task\.train must be \(inputs, targets\)"),
        ({"train": lambda: 1 / 0}, r"task\.train failed to make its data: ZeroDivisionError"),
        (
            {"train": (torch.zeros(64, 20), torch.zeros(64, 10))},
            r"targets are float32 \(64, 10\) but cross_entropy expects class numbers \(int64, one per sample\)",
        ),
        (
            {"train": (torch.zeros(64, 20), torch.zeros(64).int())},
            r"targets are int32 \(64,\) but cross_entropy expects",
        ),
        (
            {"train": (torch.zeros(64, 20), torch.full((64,), 7))},
            r"targets hold classes 7 to 7 but the model's output has 3",
        ),
        (
            {"loss": functools.partial(nn.functional.cross_entropy, reduction="none")},
            r"task\.loss must return one number.*found shape \(2,\)",
        ),
        ({"loss": lambda output, target: 1.0}, r"task\.loss must return a tensor"),
        ({"model": lambda: nn.ReLU()}, r"no parameters to train"),
        ({"model": BuiltLate}, r'makes the parameter "late.weight", which would not be trained; make it in __init__'),
        ({"model": SparseBuffer}, r'"links" is a sparse tensor, which ranks cannot share; register it dense'),
        ({"model": lambda: nn.LazyLinear(3)}, r'"weight" has no shape yet \(a lazy layer\); run the model once'),
        ({"model": lambda: 3}, r"task\.model made a int, not a torch\.nn\.Module"),
        (
            {"optimizer": lambda named: torch.optim.SGD([], lr=0.1)},
            r"task\.optimizer failed on the model's named parameters",
        ),
        (
            {"optimizer": lambda named: (SGD(named), SGD(named))},
            r"task\.optimizer made 2 optimizers, but one updates the whole",
        ),
        (
            {"optimizer": torch.optim.LBFGS},
            r"LBFGS\.step needs closure \(it computes the loss several times per update\)",
        ),
        (
            {"model": Locked()},
            r"task\.model \(Locked\) cannot be sent to the ranks \(.*lock.*; give the function that makes it",
        ),
        ({"optimizer": lambda named: 3}, r"task\.optimizer must make a torch\.optim\.Optimizer"),
        (
            {"train": [torch.zeros(20)] * 5},
            r'task\.loss failed without a target \(TypeError: .*\), but samples have none; name its key \(task\.target="labels"\)',
        ),
        ({"test": (torch.zeros(5, 20), torch.zeros(4).long())}, r"task\.test lengths differ"),
    ],
)
def test_what_is_found_when_the_task_is_built(changes: dict, message: str) -> None:
    with pytest.raises(mh.BadInput, match=message):
        quick_fit(make_task(**changes), max_steps=1)


def test_models_that_cannot_travel_train_where_a_factory_makes_them() -> None:
    """A module with a lock is refused as a value; ddp makes it on each rank, and a pipeline, which must copy it, says so."""
    assert quick_fit(make_task(model=Locked, test=None), "ddp", ranks=2, max_steps=1).steps == 1
    with pytest.raises(mh.Refused, match=r"Locked cannot be copied, so it cannot be cut \(.*lock.*\); .*, or use ddp"):
        quick_fit(make_task(model=Locked), "pipeline", ranks=2)


def test_a_single_layer_is_not_cut() -> None:
    """The refusal was looked for among the failures of a trace that had not failed."""
    with pytest.raises(mh.Refused, match=r"cannot use more stages than the model has layers \(stages: 2, layers: 1\)"):
        quick_fit(make_task(model=lambda: nn.Linear(20, 3)), "pipeline", ranks=2)


def test_frozen_parameters_are_refused_only_when_nothing_is_left() -> None:
    def frozen() -> nn.Module:
        model = nn.Linear(20, 3)
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        return model

    with pytest.raises(mh.BadInput, match="no parameters to train"):
        quick_fit(make_task(model=frozen), max_steps=1)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"ranks": 0, "strategy": "ddp"}, r"ranks must be a whole number of at least 1 \(found 0\)"),
        ({"ranks": 2, "strategy": "single"}, r"single has 1 rank \(found --ranks 2\)"),
        ({"strategy": "dpp"}, r'no strategy named "dpp"; did you mean "ddp"\?'),
        ({"strategy": "ddp:buckets=3"}, r'ddp has no option "buckets"; did you mean "bucket_mb"\?'),
        ({"strategy": "ddp:bucket_mb=big"}, r"ddp:bucket_mb must be a number \(found 'big'\)"),
        ({"strategy": "ddp:bucket_mb=-1"}, r"ddp:bucket_mb must be above 0"),
        ({"precision": "fp8"}, r'no precision named "fp8"; there are: fp32, bf16'),
        ({"accumulate": 0}, r"accumulate must be a whole number of at least 1"),
        ({"max_steps": 0}, r"max_steps must be a whole number of at least 1"),
        ({"threads": 0}, r"threads must be a whole number of at least 1"),
        ({"clip": -1.0}, r"clip must be above 0"),
        ({"device": "tpu"}, r'(no device named "tpu"|device tpu is not supported)'),
        ({"capture": "always"}, r'capture must be "auto" or "off"'),
        ({"loader_workers": -1}, r"loader_workers must be 0 or more"),
        ({"loader_workers": "many"}, r"loader_workers must be 0 or more, or \"auto\" \(found 'many'\)"),
    ],
)
def test_options_of_fit_are_checked(keywords: dict, message: str) -> None:
    strategy = keywords.pop("strategy", "single")
    with pytest.raises(mh.BadInput, match=message):
        quick_fit(make_task(), strategy, **keywords)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_cuda_without_a_gpu() -> None:
    with pytest.raises(mh.BadInput, match=r"device=cuda but no GPU is available"):
        quick_fit(make_task(), device="cuda")


def test_fit_wants_a_task() -> None:
    with pytest.raises(mh.BadInput, match="fit needs a manyhands Task"):
        mh.fit(nn.Linear(2, 2))  # type: ignore[arg-type]
