"""ShardSampler: the union over ranks is the data set, epochs differ by themselves, a resume goes on."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from manyhands.data.order import Order
from manyhands.data.sampler import ShardSampler
from manyhands.errors import BadInput


@pytest.mark.parametrize(
    ("samples", "batch_size", "ranks"), [(1003, 30, 3), (10, 4, 4), (7, 3, 5), (5, 100, 2), (1, 1, 1)]
)
def test_the_union_over_ranks_is_the_data_set_in_the_order_of_the_strategies(
    samples: int, batch_size: int, ranks: int
) -> None:
    samplers = [ShardSampler(samples, batch_size, rank, ranks, seed=5) for rank in range(ranks)]
    for epoch in range(2):
        passes = [list(sampler) for sampler in samplers]
        read: list[int] = []
        for step, planned in enumerate(Order(samples, batch_size, 5).steps(epoch)):
            shards = [taken[step] for taken, sampler in zip(passes, samplers, strict=True) if sampler.weight(step)]
            assert [sample for shard in shards for sample in shard] == Order(samples, batch_size, 5).indices(
                planned
            ).tolist()
            assert max(map(len, shards)) - min(map(len, shards)) <= 1
            assert sum(sampler.weight(step) for sampler in samplers) == pytest.approx(1.0)
            read += [sample for shard in shards for sample in shard]
        assert sorted(read) == list(range(samples))
        assert all(len(taken) == len(samplers[0]) and all(taken) for taken in passes)


def test_every_pass_is_the_next_epoch_with_an_order_of_its_own() -> None:
    sampler = ShardSampler(50, 10, 0, 2)
    first, second = list(sampler), list(sampler)
    assert sampler.epoch == 2
    assert first != second
    again = ShardSampler(50, 10, 0, 2)
    assert [list(again), list(again)] == [first, second]


def test_a_resumed_pass_goes_on_where_the_run_was() -> None:
    whole = ShardSampler(50, 10, 1, 2)
    steps = [*whole, *whole]
    later = ShardSampler(50, 10, 1, 2)
    later.start_at(7)
    assert len(later) == 3
    assert list(later) == steps[7:]
    assert len(later) == 5


@pytest.mark.parametrize("workers", [0, 2])
def test_it_feeds_a_data_loader(workers: int) -> None:
    numbers = torch.arange(21)
    loaders = [
        DataLoader(TensorDataset(numbers), batch_sampler=ShardSampler(numbers, 4, rank, 2), num_workers=workers)
        for rank in range(2)
    ]
    assert sorted(int(number) for loader in loaders for (batch,) in loader for number in batch) != []
    weighed = [
        int(number)
        for rank, loader in enumerate(loaders)
        for step, (batch,) in enumerate(loader)
        if ShardSampler(21, 4, rank, 2).weight(step)
        for number in batch
    ]
    assert sorted(weighed) == list(range(21))


def test_without_torch_distributed_it_is_one_rank() -> None:
    assert sorted(sample for shard in ShardSampler(12, 5) for sample in shard) == list(range(12))


def test_refusals() -> None:
    with pytest.raises(BadInput, match=r"needs samples, .* \(samples: 10, batch_size: 4, rank: 2, ranks: 2\)"):
        ShardSampler(10, 4, 2, 2)
    with pytest.raises(BadInput, match=r"batch_size: 0"):
        ShardSampler(10, 0)
