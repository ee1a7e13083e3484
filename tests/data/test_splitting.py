"""What counts samples in a batch is learnt from two of them, and parts come together again as what they were."""

from __future__ import annotations

from collections import OrderedDict, UserDict, defaultdict
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from manyhands.data import nest
from manyhands.data.splitting import ROWS, SHARED, Unsplittable, count, inferred, join, learn, split
from manyhands.errors import BadInput


class Point(NamedTuple):
    place: Tensor
    name: str


@dataclass(frozen=True)
class Frozen:
    rows: Tensor
    note: str = ""


class Own(UserDict[str, Any]):
    pass


def batch(samples: int) -> Any:
    rows = torch.arange(samples * 2).reshape(samples, 2)
    return Own(
        point=Point(rows, "here"),
        frozen=Frozen(rows + 1, "note"),
        boxes=[{"box": torch.full((number + 1, 4), number)} for number in range(samples)],
        scale=torch.tensor(2.0),
        ordered=OrderedDict(a=rows),
        looked=MappingProxyType({"b": rows}),
        several=defaultdict(list, c=rows),
    )


def test_parts_are_those_of_the_samples_and_join_again() -> None:
    whole = batch(7)
    rule = learn(whole, batch(6), (7, 6))
    assert count(whole, rule) == 7
    parts = split(whole, rule, [(0, 3), (3, 7)])
    second = parts[1]
    assert [type(second[key]) for key in whole] == [type(whole[key]) for key in whole]
    assert (second["frozen"].note, second["point"].name, second["scale"].item()) == ("note", "here", 2.0)
    assert torch.equal(second["frozen"].rows, whole["frozen"].rows[3:])
    assert [len(entry["box"]) for entry in second["boxes"]] == [4, 5, 6, 7]
    joined = join(parts, rule, rows=torch.cat, entry=lambda item: item)
    assert all(torch.equal(one, two) for one, two in zip(nest.leaves(joined), nest.leaves(whole), strict=True))


def test_three_images_of_three_channels_are_three_entries() -> None:
    """In this one batch rows and entries cannot be told apart."""
    images = [torch.zeros(3, 4, 4)] * 3
    assert learn(images, images[:2], (3, 2)) == "entries"
    assert learn([torch.zeros(3, 4)] * 3, [torch.zeros(2, 4)] * 3, (3, 2)) == ("rows",) * 3


@pytest.mark.parametrize(
    ("more", "fewer", "reason"),
    [
        (torch.zeros(7, 3), torch.zeros(7, 2), r"a tensor of shape \(7, 3\) for 3 samples"),
        ([1] * 5, [1] * 4, "a list of 5 entries for 3 samples"),
        (torch.distributions.Normal(torch.zeros(3), 1.0), torch.distributions.Normal(torch.zeros(2), 1.0), "a Normal"),
    ],
)
def test_what_counts_no_samples_is_not_guessed(more: Any, fewer: Any, reason: str) -> None:
    with pytest.raises(Unsplittable, match=reason):
        learn(more, fewer, (3, 2))


def test_batches_that_do_not_keep_to_the_rule_are_refused() -> None:
    rule = learn([torch.zeros(3), [0, 0, 0]], [torch.zeros(2), [0, 0]], (3, 2))
    with pytest.raises(BadInput, match="count different numbers of samples: 4, 5"):
        split([torch.zeros(4), [0] * 5], rule, [(0, 4)])
    with pytest.raises(BadInput, match="a batch of 6 samples holds 4"):
        split([torch.zeros(4), [0] * 4], rule, [(0, 3), (3, 6)])
    with pytest.raises(BadInput, match="give every batch the same structure"):
        split([torch.zeros(4)], rule, [(0, 4)])


def test_without_a_second_batch_rows_come_first() -> None:
    assert inferred([torch.zeros(8, 3), torch.zeros(8)]) == ("rows", "rows")
    assert inferred(([torch.zeros(3, 5)] * 2, torch.zeros(2)), arguments=True) == ("entries", "rows")
    assert inferred([{"box": torch.zeros(3, 4)}, {"box": torch.zeros(1, 4)}]) == "entries"


def test_what_cannot_be_split_or_joined_is_said() -> None:
    with pytest.raises(BadInput, match="a batch of 4 samples holds 3; one entry or row per sample is needed"):
        split(torch.zeros(3, 2), ROWS, [(0, 2), (2, 4)])
    with pytest.raises(BadInput, match=r"different values where one is needed for the batch \(1, 2\); give one per"):
        join([1, 2], SHARED, torch.cat, lambda item: item)
