"""What workers read arrives on the rank as it was, whatever its types, or fails where it was read."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from manyhands.data.handover import handed_over, small_by_pipe
from manyhands.data.stream import Part


def test_small_batches_are_copied_and_arrive_as_tensors() -> None:
    batch = {"a": torch.arange(6).reshape(2, 3), "b": [torch.ones(2, dtype=torch.bfloat16), "word"]}
    arrived = pickle.loads(pickle.dumps(small_by_pipe(batch)))
    assert torch.equal(arrived["a"], batch["a"])
    assert torch.equal(arrived["b"][0], torch.ones(2, dtype=torch.bfloat16))
    assert arrived["b"][1] == "word"
    arrived["a"] += 1  # it may be written to
    large = torch.zeros(1 << 20)
    assert small_by_pipe((large, 1))[0] is large


@pytest.mark.parametrize("size", [3, 1 << 20])
def test_classes_that_cannot_be_found_by_name_arrive(size: int) -> None:
    """A dataclass of the script itself was lost in the worker's queue, and the rank waited for it until it was stopped."""

    @dataclass(frozen=True, slots=True)
    class Sample:
        image: Any
        name: Any = None

    part = Part((Sample(torch.arange(size)), None), ended=3)
    arrived = pickle.loads(pickle.dumps(handed_over(part)))
    assert arrived.ended == 3
    input, target = arrived.pair
    assert type(input) is Sample
    assert torch.equal(input.image, torch.arange(size))
    assert target is None


def test_what_cannot_be_sent_fails_in_the_worker() -> None:
    with pytest.raises(TypeError, match="generator"):
        handed_over(Part(({"x": torch.ones(2), "later": (n for n in range(3))}, None)))
