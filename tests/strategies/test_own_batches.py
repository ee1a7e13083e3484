"""Batches and outputs of one's own kinds: split, joined and sent as they are, or refused before the start."""

from __future__ import annotations

from collections import UserDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import manyhands as mh
from tests.conftest import quick_fit
from tests.strategies.unprepared import (
    CLASSES,
    THREADS,
    Net,
    both_kinds,
    check,
    numbers,
    task_of,
)


class Labelled(UserDict[str, Tensor]):
    """A mapping that is no dict, as tokenizers give."""


class Mapped(Net):
    def forward(self, x: Any) -> Any:
        assert isinstance(x, Labelled)
        return super().forward(x["values"]) + self.b.bias * x["inner"]["scale"].mean(1, keepdim=True)


def labelled(samples: list[Any]) -> Any:
    values = torch.stack([value for value, _ in samples])
    return Labelled(values=values, inner={"scale": values[:, :2]}), torch.stack([label for _, label in samples])


@both_kinds
def test_a_mapping_of_ones_own_arrives_as_such(strategies: tuple[str, ...]) -> None:
    check(task_of(Mapped, TensorDataset(*numbers()), collate=labelled), *strategies)


@dataclass
class Result:
    logits: Tensor
    hidden: tuple[Tensor, ...] = ()
    extra: None = None


class Typed(Net):
    def forward(self, x: Tensor) -> Any:
        hidden = torch.tanh(self.a(x))
        return Result(self.b(hidden), (hidden,))


def of_result(output: Result, target: Tensor) -> Tensor:
    assert type(output) is Result
    return F.cross_entropy(output.logits, target) + output.hidden[0].pow(2).mean()


@both_kinds
def test_a_dataclass_comes_back_as_such(strategies: tuple[str, ...]) -> None:
    """It became a dictionary between replicas and at the end of a cut model."""
    check(task_of(Typed, loss=of_result), *strategies)


class Box:
    def __init__(self, logits: Tensor):
        self.logits = logits


class Boxed(Net):
    def forward(self, x: Tensor) -> Any:
        return Box(super().forward(x))


@pytest.mark.parametrize("strategy", ["model_parallel", "pipeline", *THREADS])
def test_tensors_in_an_object_of_ones_own_are_refused_by_its_type(strategy: str) -> None:
    """Gradients ended where nobody could look inside."""
    task = task_of(Boxed, loss=lambda output, target: F.cross_entropy(output.logits, target))
    with pytest.raises(mh.Refused, match=r"Box\b"):
        quick_fit(task, strategy, ranks=2)


# ---------------------------------------------------------------- what counts samples


class Boxes(NamedTuple):
    places: Tensor


def boxed(samples: list[Any]) -> Any:
    return torch.stack([value for value, _ in samples]), [{"box": Boxes(label.repeat(3, 2))} for _, label in samples]


def of_boxes(output: Tensor, targets: list[Any]) -> Tensor:
    assert len(output) == len(targets)
    parts = [
        F.cross_entropy(row[None], target["box"].places[:1, 0]) for row, target in zip(output, targets, strict=True)
    ]
    return torch.stack(parts).mean()


@both_kinds
def test_a_list_of_targets_is_split_by_entry(strategies: tuple[str, ...]) -> None:
    """One dictionary per sample was cut inside, tensor by tensor, and samples got the losses of others."""
    check(task_of(Net, TensorDataset(*numbers()), collate=boxed, loss=of_boxes), *strategies)


class Pictures(nn.Module):
    """Takes a tuple of pictures, one per sample."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, CLASSES)

    def forward(self, pictures: Any) -> Tensor:
        return self.head(torch.stack([self.conv(picture).mean((1, 2)) for picture in pictures]))


def pictures(samples: list[Any]) -> Any:
    return tuple(value.reshape(1, 4, 4).repeat(3, 1, 1) for value, _ in samples), torch.stack([y for _, y in samples])


def test_pictures_of_three_channels_are_not_three_samples() -> None:
    """In a batch of three, every tensor has three rows: only another batch tells entries from rows."""
    task = task_of(Pictures, TensorDataset(*(t[:27] for t in numbers())), collate=pictures)
    check(task, *THREADS)
    with pytest.raises(mh.Refused, match=r"pipeline cuts models whose input holds the same number of tensors"):
        quick_fit(task, "pipeline", ranks=2)


class Noted(Net):
    def forward(self, x: Any) -> Tensor:
        assert x["text"] == ["for people"] * len(x["values"])
        return super().forward(x["values"])


def test_texts_beside_the_numbers_go_along_as_a_list() -> None:
    samples = [{"values": x, "label": int(y), "text": "for people"} for x, y in zip(*numbers(), strict=True)]
    task = task_of(Noted, samples, target="label")
    check(task, *THREADS)
    with pytest.raises(
        mh.Refused, match=r"\(found a list of str that grows with the number of samples\); stack it, or leave"
    ):
        quick_fit(task, "pipeline", ranks=2)


def test_what_counts_no_samples_is_refused_with_its_shape() -> None:
    def turned(samples: list[Any]) -> Any:
        return torch.stack([value for value, _ in samples]), torch.stack([y.repeat(7) for _, y in samples], 1)

    task = task_of(Net, TensorDataset(*numbers()), collate=turned, loss=lambda o, t: F.cross_entropy(o, t[0]))
    for strategy in ("pipeline", "data_parallel"):
        with pytest.raises(mh.Refused, match=r"found in the targets: a tensor of shape \(7, 3\) for 3 samples"):
            quick_fit(task, strategy, ranks=2)
    check(task, "model_parallel")  # which splits nothing


# ---------------------------------------------------------------- what a forward leaves behind
