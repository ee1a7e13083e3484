"""Whatever samples look like, a batch is (input, target)."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from manyhands.data.pairs import Pairs
from manyhands.errors import BadInput

Point = namedtuple("Point", "x y")
A, B, C = torch.zeros(2), torch.ones(2), torch.full((2,), 2.0)


@dataclass(frozen=True)
class Sample:
    x: Any
    y: Any


@pytest.mark.parametrize(
    ("batch", "input", "target"),
    [
        ((A, B), A, B),
        ([A, None], A, None),
        (Point(A, B), A, B),
        (A, A, None),
        ((A,), A, None),
        ([A, B, C], [A, B, C], None),
        ({"x": A, "y": B}, {"x": A, "y": B}, None),
        (Sample(A, B), Sample(A, B), None),
    ],
    ids=str,
)
def test_pairs_are_taken_apart_and_anything_else_is_the_input(batch: Any, input: Any, target: Any) -> None:
    found = Pairs().split(batch)
    assert repr(found) == repr((input, target))


def test_the_target_is_named_by_its_key_or_keys() -> None:
    batch = {"x": A, "y": B, "z": C}
    assert repr(Pairs(target="y").split(batch)) == repr(({"x": A, "z": C}, B))
    assert repr(Pairs(target=("z", "y")).split(batch)) == repr(({"x": A}, {"z": C, "y": B}))
    assert repr(Pairs(target="y").split(Sample(A, B))) == repr((Sample(A, None), B))
    input, target = Pairs(target="y", kept=True).split(batch)  # the model computes its loss from it
    assert input is batch
    assert target is B


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"x": A, "labels": B}, r'samples have no "lables" \(task.target\); did you mean "labels"\?'),
        ({"x": A, "y": B}, r'samples have no "lables" \(task.target\); there are: x, y'),
        ((A, B), r'task.target names "lables", but samples have no keys \(found tuple\); leave task.target out'),
    ],
)
def test_a_key_that_is_not_there_is_refused(batch: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        Pairs(target="lables").split(batch)


def test_a_list_of_samples_is_never_taken_for_a_pair() -> None:
    """`collate=list` gave (input, target) for the one batch that had two samples."""
    for samples in ([A], [A, B], [A, B, C]):
        assert Pairs(collate=list)(samples) == (samples, None)
    pairs = [(A, B), (A, C)]
    images, targets = Pairs(collate=lambda samples: [torch.stack(column) for column in zip(*samples, strict=True)])(
        pairs
    )
    assert isinstance(images, Tensor)
    assert torch.equal(targets, torch.stack([B, C]))
