"""Samples become batches as torch has it, in their own types, and what cannot be is refused by its name."""

from __future__ import annotations

import datetime
from collections import UserDict, namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from manyhands.data import nest
from manyhands.data.collate import collate
from manyhands.errors import BadInput

Point = namedtuple("Point", "x y")
ONE = torch.ones(3)


@dataclass(frozen=True, slots=True)
class Sample:
    image: Any
    label: int
    name: str = "a"


@pytest.mark.parametrize(
    "sample",
    [
        (ONE, 1),
        (ONE.numpy(), np.int64(3), np.float32(0.5), 0.25, True, "text"),
        ONE,
        Point(ONE, [1.0, 2]),
        [ONE, (ONE, 2)],
        {"x": ONE, "inner": {"y": np.uint8(3)}, "text": "t", "bytes": b"b"},
    ],
)
def test_what_torch_can_collate_is_collated_as_torch_does(sample: Any) -> None:
    ours, theirs = collate([sample, sample]), default_collate([sample, sample])
    assert type(ours) is type(theirs)
    for one, other in zip(nest.items(ours), nest.items(theirs), strict=True):
        assert torch.equal(one, other) and one.dtype == other.dtype if isinstance(one, torch.Tensor) else one == other


def test_what_torch_cannot_collate_keeps_its_type() -> None:
    batch = collate([Sample(ONE, 1), Sample(ONE, 2)])
    assert (type(batch), batch.label.tolist(), batch.name) == (Sample, [1, 2], ["a", "a"])
    assert collate([(ONE, None)] * 2)[1] is None
    assert collate([{"x": ONE, "mask": None}] * 2)["mask"] is None
    assert collate([{"text": None}, {"text": "a"}])["text"] == [None, "a"]
    assert collate([{"text": "a"}, {"text": None}])["text"] == ["a", None]
    own = collate([UserDict(x=ONE, y=1)] * 2)
    assert (type(own), own["x"].shape) == (UserDict, (2, 3))


def test_transformers_inputs_and_outputs_stay_what_they_are() -> None:
    transformers = pytest.importorskip("transformers")
    encoding = transformers.BatchEncoding({"input_ids": [1, 2, 3], "labels": 1})
    batch = collate([encoding, encoding])
    assert (type(batch), batch["input_ids"].shape, batch["labels"].tolist()) == (type(encoding), (2, 3), [1, 1])
    output = transformers.modeling_outputs.BaseModelOutput(last_hidden_state=ONE)
    assert collate([output, output]).last_hidden_state.shape == (2, 3)


def test_lists_of_numbers_under_a_name_are_rows() -> None:
    """Rows of a Hugging Face dataset hold lists; torch gave a tensor for each position, and the model a shape error."""
    batch = collate([{"ids": [1, 2, 3], "grid": [[0.5, 1], [2, 3]], "score": 0.5, "words": ["a", "b"]}] * 2)
    assert (batch["ids"].shape, batch["ids"].dtype) == ((2, 3), torch.int64)
    assert (batch["grid"].shape, batch["grid"].dtype, batch["score"].dtype) == ((2, 2, 2), torch.float32, torch.float32)
    assert batch["words"] == [("a", "a"), ("b", "b")] or batch["words"] == [["a", "a"], ["b", "b"]]


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (
            [{"ids": [1, 2]}, {"ids": [1]}],
            r'tensors of different shapes under "ids" \(\(2,\) and \(1,\)\); give task.collate',
        ),
        ([(ONE, 1), (ONE[:2], 1)], r"tensors of different shapes \(\(3,\) and \(2,\)\); give task.collate"),
        ([{"a": {"ids": ONE}}, {"a": {"ids": ONE[:1]}}], r'different shapes under "ids" under "a"'),
        ([(["a"], 1), (["a", "b"], 1)], r"lists of different lengths \(1 and 2\); give task.collate"),
        ([{"x": ONE}, {"x": ONE, "extra": 1}], r'only some samples hold "extra"; give every sample the same keys'),
        ([{"x": ONE, "z": 1}, {"x": ONE, "z": None}], r'some samples hold None under "z" and others do not'),
        ([{"x": ONE}, {"x": None}], r'some samples hold None under "x" and others do not'),
        ([{"x": [1, 2]}, {"x": None}], r'some samples hold None under "x" and others do not'),
        ([{"when": datetime.date(2020, 1, 1)}], r'samples hold a date under "when", which cannot be put into a batch'),
    ],
)
def test_what_cannot_be_stacked_is_named(samples: list[Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        collate(samples)
