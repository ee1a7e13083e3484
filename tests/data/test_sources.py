"""Data as the user gives it: in memory where it can be, the same batches where not; what holds no samples is bad input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from manyhands.data import nest
from manyhands.data.feed import each_once
from manyhands.data.loader_parts import LoaderParts
from manyhands.data.loading import DatasetSource
from manyhands.data.pairs import Pairs
from manyhands.data.sources import TensorSource, make_source
from manyhands.errors import BadInput

X, Y = torch.arange(14.0).reshape(7, 2), torch.arange(7)


@dataclass
class Columns:
    x: Tensor
    y: Tensor


class Stream(IterableDataset):
    def __len__(self) -> int:
        return 7

    def __iter__(self) -> Any:
        return ({"x": x, "y": int(y), "text": "t"} for x, y in zip(X, Y, strict=True))


def rows(texts: bool = False) -> list[dict[str, Any]]:
    return [{"x": x, "y": int(y), **({"text": "t"} if texts else {})} for x, y in zip(X, Y, strict=True)]


@pytest.mark.parametrize(
    ("data", "in_memory", "target"),
    [
        ((X, Y), True, None),
        ((X.numpy(), Y.numpy()), True, None),
        (TensorDataset(X, Y), True, None),
        (list(zip(X, Y, strict=True)), False, None),
        ({"x": X, "y": Y}, True, "y"),
        ({"x": X.tolist(), "y": Y.tolist()}, True, "y"),
        (Columns(X, Y), True, "y"),
        (rows(), False, "y"),
        (rows(texts=True), False, "y"),
        (Stream(), False, "y"),
        (rows()[:2], False, "y"),  # two samples are not (inputs, targets)
    ],
)
def test_every_source_hands_out_inputs_and_targets(data: Any, in_memory: bool, target: str | None) -> None:
    source = make_source(data, None, "train", Pairs(target=target))
    assert isinstance(source, TensorSource) is in_memory
    batches = [source.gather(torch.tensor([1, 0])), next(each_once(source, 2, torch.device("cpu")))[:2]]
    for (input, found), order in zip(batches, ([1, 0], [0, 1]), strict=True):
        assert torch.equal(next(nest.leaves(input)), X[order])
        assert torch.equal(found, Y[order])
        texts = isinstance(input, dict) and input.get("text")
        assert texts in (None, False, ["t", "t"])


@pytest.mark.parametrize(
    ("data", "parts"),
    [
        (X, 1),
        ((X, None), 1),
        (X.numpy(), 1),
        (TensorDataset(X), 1),
        (TensorDataset(X, X, Y), 3),
        ((X, X, Y), 3),
        ({"x": X}, 1),
    ],
)
def test_samples_without_a_target_are_all_input(data: Any, parts: int) -> None:
    source = make_source(data, None, "train")
    assert isinstance(source, TensorSource)
    assert len(source) == 7
    input, target = source.gather(torch.tensor([2]))
    assert target is None
    assert len(list(nest.leaves(input))) == parts
    assert source.slice(0, 3)[1] is None


def test_rows_of_a_hugging_face_dataset_need_no_format() -> None:
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict({"x": X.tolist(), "y": Y.tolist(), "text": ["t"] * 7})
    for data in (table, table.with_format("torch")):
        source = make_source(data, None, "train", Pairs(target="y"))
        assert isinstance(source, DatasetSource)
        input, target = source.gather(torch.tensor([3, 1]))
        assert torch.equal(input["x"], X[[3, 1]])
        assert torch.equal(target, Y[[3, 1]])
    with pytest.raises(BadInput, match=r'task.train\["train"\] is a Dataset, .* give it alone: train=data\["train"\]'):
        make_source(datasets.DatasetDict(train=table), None, "train")


def test_a_loader_s_own_collate_holds_for_its_data() -> None:
    loader = DataLoader(rows(), batch_size=2, collate_fn=lambda samples: (torch.stack([s["x"] for s in samples]), None))
    source = make_source(LoaderParts.of(loader, "test"), lambda samples: 1 / 0, "test")
    assert torch.equal(source.gather(torch.tensor([1]))[0], X[1:2])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (([], torch.zeros(3)), r"task.train inputs hold no tensor \(found list\)"),
        ((torch.zeros(3), {}), r"task.train targets hold no tensor \(found dict\)"),
        ((torch.tensor(1.0), torch.zeros(3)), r"task.train inputs hold a tensor without dimensions"),
        ({}, r"task.train holds no samples \(an empty dict\)"),
        ({"x": X, "y": Y[:3]}, r"task.train lengths differ: 7 and 3"),
        (
            {"x": X, "text": ["a"] * 7},
            r'task.train\["text"\] is a list that is no table of numbers \(texts, or rows of dif',
        ),
        ({"x": [[1, 2], [3]]}, r'task.train\["x"\] is a list that is no table of numbers'),
        (np.zeros(()), r"task.train inputs hold a tensor without dimensions"),
    ],
)
def test_what_holds_no_samples_is_refused(data: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        make_source(data, None, "train")
