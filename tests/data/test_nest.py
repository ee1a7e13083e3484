"""Nests of tensors: types survive, whatever is inside; what is no nest is handed on; hidden tensors are found."""

from __future__ import annotations

from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.fx.immutable_collections import immutable_dict, immutable_list

from manyhands.data import nest
from manyhands.data.splitting import join, learn, split

Pair = namedtuple("Pair", "left right")


@dataclass(frozen=True)
class Sample:
    image: Any
    name: str = "x"


@dataclass(frozen=True, slots=True)
class Slotted:
    held: Any
    name: str = "x"


@dataclass(kw_only=True)
class Counted:
    held: Any
    made: int = field(init=False, default=0)
    late: Any = field(init=False)  # never set

    def __post_init__(self) -> None:
        self.made += 1  # a constructor that does more than to store


class Odd(UserDict[str, Any]):
    """A mapping whose constructor takes anything but a mapping."""

    def __init__(self, held: Any, other: Any):
        super().__init__()
        self.data.update(held=held, other=other)


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


@cache
def output_class() -> Any:
    """A transformers output: an ordered dictionary and a dataclass at once, which leaves out what is None."""
    generic = pytest.importorskip("transformers.utils.generic")

    @dataclass
    class Output(generic.ModelOutput):  # type: ignore[misc, name-defined]
        held: Any = None
        loss: Any = None
        other: Any = None

    return Output


def encoding(held: Any) -> Any:
    return pytest.importorskip("transformers").BatchEncoding({"held": held, "other": None})


WRAPS: dict[str, Callable[[Any], Any]] = {
    "tuple": lambda held: (held, "x", None),
    "list": lambda held: [held],
    "dict": lambda held: {"held": held, "empty": {}},
    "named tuple": lambda held: Pair(held, None),
    "odd mapping": lambda held: Odd(held, 3),
    "frozen": lambda held: Sample(held),
    "slots": lambda held: Slotted(held),
    "keywords": lambda held: Counted(held=held),
    "namespace": lambda held: SimpleNamespace(held=held, other=None),
    "transformers input": encoding,
    "transformers output": lambda held: output_class()(held=held),
}


@given(wraps=st.lists(st.sampled_from(sorted(WRAPS)), min_size=1, max_size=3))
@settings(max_examples=60, deadline=None)
def test_any_nest_of_nests_keeps_its_types_when_it_is_walked_through_split_and_joined(wraps: list[str]) -> None:
    """However types are put into each other: walked through, cut into parts and put together again they are the same."""
    batches = [torch.arange(rows * 2.0).reshape(rows, 2) for rows in (5, 4)]
    more, fewer = batches
    for name in wraps:
        more, fewer = WRAPS[name](more), WRAPS[name](fewer)
        fewer = nest.rebuilt(more, nest.children(fewer))  # classes made on the spot are others each time
    assert kinds(nest.each(more, lambda tensor: tensor + 1)) == kinds(more)
    assert [leaf[0, 0] for leaf in nest.leaves(nest.rows(more, 1, 3))] == [2]
    rule = learn(more, fewer, (5, 4))
    parts = split(more, rule, [(0, 2), (2, 5)])
    joined = join(parts, rule, rows=torch.cat, entry=lambda item: item)
    assert kinds(parts[1]) == kinds(joined) == kinds(more)
    assert torch.equal(next(nest.leaves(joined)), batches[0])


def kinds(value: Any) -> Any:
    """Every type of a nest, and what its entries are called."""
    names = list(value) if isinstance(value, dict | UserDict) else nest.attribute_names(value)
    return type(value), names, [kinds(item) for item in nest.children(value) or ()]


def test_a_constructor_is_not_run_again() -> None:
    assert nest.each(Counted(held=ONE), lambda tensor: tensor * 2).made == 1


def test_an_output_of_one_list_of_pairs_is_not_taken_for_its_fields() -> None:
    """A transformers output reads its only field as (name, value) pairs where it looks like some: copies lost it."""
    value = output_class()(held=ONE)
    value["held"] = [("loss", ONE)]
    again = nest.each(value, lambda tensor: tensor + 1)
    assert again.loss is None
    assert torch.equal(again.held[0][1], ONE + 1)


@pytest.mark.parametrize("make", [lambda: {"held": ONE, "y": TWO}, lambda: Odd(ONE, TWO), lambda: encoding(ONE)])
def test_what_is_taken_out_of_a_mapping_is_gone(make: Callable[[], Any]) -> None:
    value = make()
    rest = nest.without(value, ("y", "other"))
    assert type(rest) is type(value)
    assert list(rest) == ["held"]
    assert len(list(value)) == 2  # as it was


def test_what_is_taken_out_of_fixed_fields_is_none() -> None:
    value = output_class()(held=ONE, loss=TWO)
    rest = nest.without(value, ("loss",))
    assert (list(rest), rest.loss, value.loss is TWO) == (["held"], None, True)
    assert nest.without(Sample(ONE, "x"), ("name",)).name is None
