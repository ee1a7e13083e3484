"""Nests of tensors: types survive, whatever is inside; what is no nest is handed on; hidden tensors are found."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.immutable_collections import immutable_dict, immutable_list

from manyhands.data import nest

Pair = namedtuple("Pair", "left right")


@dataclass(frozen=True)
class Sample:
    image: Any
    name: str = "x"


class Box:
    def __init__(self, held: Any):
        self.held = held


ONE, TWO = torch.ones(2, 3), torch.zeros(2)
NESTS = [ONE, (ONE, TWO), [ONE, [TWO]], {"b": ONE, "a": (TWO,)}, OrderedDict(b=ONE, a=TWO), Pair(ONE, {"a": TWO})]


@pytest.mark.parametrize("value", [*NESTS, Sample(ONE), Sample(Pair(ONE, TWO))], ids=repr)
def test_types_and_order_survive(value: Any) -> None:
    doubled = nest.each(value, lambda tensor: tensor * 2)
    assert type(doubled) is type(value)
    assert [leaf.shape for leaf in nest.leaves(doubled)] == [leaf.shape for leaf in nest.leaves(value)]
    for found, before in zip(nest.items(doubled), nest.items(value), strict=True):
        assert torch.equal(found, before * 2) if isinstance(before, Tensor) else found == before


def test_slices_and_the_immutable_nests_of_torch_fx_are_opened() -> None:
    args = immutable_list([slice(1, 2), immutable_dict(a=3)])
    found = nest.over(args, lambda leaf: leaf and leaf + 1)
    assert found == [slice(2, 3, None), {"a": 4}]
    assert [type(found), type(found[1])] == [list, dict]  # what is handed to a function may be written into


@pytest.mark.parametrize("leaf", [3, "word", None, torch.Size([2, 3]), torch.float32, Box(1), Sample])
def test_everything_else_is_a_leaf(leaf: Any) -> None:
    assert nest.children(leaf) is None
    assert nest.each(leaf, lambda tensor: None) is leaf


def test_tensors_that_nobody_can_reach_are_found() -> None:
    hidden = Box([Box(ONE)])
    assert nest.opaque({"a": ONE, "b": (hidden,)}) is hidden
    assert nest.opaque([ONE, Box("no tensor"), Box, len]) is None
