"""Data that lives on the device: the same samples in the same order as the host reads them."""

from __future__ import annotations

import pytest
import torch

from manyhands.data.batches import Batches
from manyhands.data.order import Order, Shard
from manyhands.data.resident import Resident
from manyhands.data.sources import TensorSource


@pytest.mark.parametrize(
    ("samples", "batch", "of", "fixed", "shares", "drop_last"),
    [
        (103, 10, 1, False, None, True),
        (103, 10, 3, False, None, True),
        (50, 7, 2, True, None, True),
        (103, 10, 1, False, None, False),
        (103, 10, 3, False, None, False),
        (21, 10, 4, False, None, False),
        (50, 7, 2, True, None, False),
        (50, 7, 2, False, (0.3, 0.7), False),
        (5, 4, 3, True, None, False),
    ],
)
def test_resident_data_gives_the_batches_of_the_host(
    samples: int, batch: int, of: int, fixed: bool, shares: tuple[float, ...] | None, drop_last: bool
) -> None:
    source = TensorSource(torch.arange(samples * 2.0).reshape(samples, 2), torch.arange(samples))
    order = Order(samples, batch, 3, drop_last=drop_last)
    for index in range(of):
        shard = Shard(index, of, fixed, shares)
        host = Batches(source, order, shard, True)
        there = Resident(source, order, shard, True, torch.device("cpu"))
        for epoch in range(2):
            for one, other in zip(host.epoch(epoch, 1), there.epoch(epoch, 1), strict=True):
                there.fetch(other)
                assert torch.equal(one.input, other.input)
                assert torch.equal(one.target, other.target)
                assert one.keys is not None
                assert torch.equal(one.keys, other.keys)  # type: ignore[arg-type]
                assert one.count == other.count
                assert one.step == other.step


def test_resident_data_without_targets_has_none() -> None:
    source = TensorSource({"x": torch.arange(9.0), "none": None}, None)
    there = Resident(source, Order(9, 4, 3), Shard(), False, torch.device("cpu"))
    for batch in there.epoch(0):
        there.fetch(batch)
        assert (len(batch.input["x"]), batch.input["none"], batch.target) == (batch.count, None, None)
