"""The order of the data: the same global batches for everybody, every sample once."""

from __future__ import annotations

import itertools
from collections import Counter

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.data.batches import Batches
from manyhands.data.loading import DatasetSource
from manyhands.data.order import Order, Shard, shard_bounds
from manyhands.data.sources import TensorSource

sizes = st.integers(1, 300)


@given(samples=sizes, batch=st.integers(1, 70), ranks=st.integers(1, 9), seed=st.integers(0, 5), fixed=st.booleans())
@settings(max_examples=60, deadline=None)
def test_an_epoch_is_exactly_the_data_set(samples: int, batch: int, ranks: int, seed: int, fixed: bool) -> None:
    order = Order(samples, batch, seed)
    seen: Counter[int] = Counter()
    for step in order.steps(epoch=1):
        for rank in range(ranks):
            seen.update(order.indices(step, Shard(rank, ranks, fixed=fixed)).tolist())
    assert seen == Counter(range(samples))


@given(
    samples=sizes, batch=st.integers(1, 70), ranks=st.integers(1, 9), fixed=st.booleans(), accumulate=st.integers(1, 3)
)
@settings(max_examples=60, deadline=None)
def test_a_tail_that_is_dropped_is_another_one_each_epoch(
    samples: int, batch: int, ranks: int, fixed: bool, accumulate: int
) -> None:
    order = Order(samples, batch, 1, accumulate, drop_last=True)
    for epoch in range(2):
        steps, seen = list(order.steps(epoch)), Counter[int]()
        assert len(steps) == samples // batch == order.steps_per_epoch
        assert sum(step.group_total for step in steps if step.update) == len(steps) * batch
        for step in steps:
            assert step.total == batch
            for rank in range(ranks):
                seen.update(order.indices(step, Shard(rank, ranks, fixed=fixed)).tolist())
        assert seen.total() == len(seen) == len(steps) * batch
    if steps:
        assert order.samples_up_to(steps[-1]) == 2 * len(steps) * batch


def test_what_one_epoch_drops_another_reads() -> None:
    order = Order(10, 4, 0, drop_last=True)
    seen = [torch.cat([order.indices(step) for step in order.steps(epoch)]).tolist() for epoch in range(9)]
    assert len({frozenset(range(10)) - frozenset(read) for read in seen}) > 1


@given(samples=sizes, batch=st.integers(1, 70), ranks=st.integers(1, 9), first=st.integers(0, 400))
@settings(max_examples=40, deadline=None)
def test_a_resumed_epoch_continues_where_it_stopped(samples: int, batch: int, ranks: int, first: int) -> None:
    order = Order(samples, batch, seed=3)
    first = min(first, order.steps_per_epoch)
    whole = [order.indices(step, Shard(0, ranks)).tolist() for step in order.steps(2)]
    rest = [order.indices(step, Shard(0, ranks)).tolist() for step in order.steps(2, first)]
    assert whole[first:] == rest


@given(data=st.data(), samples=sizes, batch=st.integers(1, 70), fixed=st.booleans(), memory=st.booleans())
@settings(max_examples=60, deadline=None)
def test_stops_and_other_numbers_of_ranks_lose_and_double_nothing(
    data: st.DataObject, samples: int, batch: int, fixed: bool, memory: bool
) -> None:
    """An epoch is stopped twice and resumed by other numbers of ranks: the batches hold the data set all the same."""
    order = Order(samples, batch, seed=1)
    stops = sorted(data.draw(st.lists(st.integers(0, order.steps_per_epoch), min_size=2, max_size=2)))
    inputs = torch.arange(samples)
    ranks = data.draw(st.integers(1, 9))
    seen: Counter[int] = Counter()
    for first, stop in itertools.pairwise([0, *stops, order.steps_per_epoch]):
        ranks = ranks if fixed else data.draw(st.integers(1, 9))  # parts of their own belong to a number of ranks
        source = TensorSource(inputs, inputs) if memory else DatasetSource(Numbers(samples), None)
        for rank in range(ranks):
            batches = Batches(source, order, Shard(rank, ranks, fixed=fixed), keyed=True).epoch(2, first)
            for taken in itertools.islice(batches, stop - first):
                assert len(taken.input) == len(taken.keys) == max(1, taken.count)  # type: ignore[arg-type]
                seen.update(taken.target[: taken.count].tolist())
    assert seen == Counter(range(samples))


class Numbers(torch.utils.data.Dataset):
    def __init__(self, samples: int):
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, index


@given(samples=sizes, batch=st.integers(1, 70), ranks=st.integers(1, 9))
@settings(max_examples=40, deadline=None)
def test_shards_join_to_the_batch_of_single(samples: int, batch: int, ranks: int) -> None:
    order = Order(samples, batch, seed=0)
    for step in order.steps(0):
        shards = [order.indices(step, Shard(rank, ranks)) for rank in range(ranks)]
        assert torch.cat(shards).tolist() == order.indices(step).tolist()
        lengths = [len(shard) for shard in shards]
        assert max(lengths) - min(lengths) <= 1


@given(count=st.integers(0, 100), of=st.integers(1, 20))
def test_shard_bounds_cover_everything(count: int, of: int) -> None:
    edges = [shard_bounds(count, index, of) for index in range(of)]
    assert edges[0][0] == 0
    assert edges[-1][1] == count
    assert all(left[1] == right[0] for left, right in itertools.pairwise(edges))


@given(samples=sizes, batch=st.integers(1, 50), accumulate=st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_accumulated_groups_know_their_true_size(samples: int, batch: int, accumulate: int) -> None:
    order = Order(samples, batch, 0, accumulate)
    group: list[int] = []
    updates = 0
    for step in order.steps(0):
        group.append(step.total)
        if step.update:
            assert step.group_total == sum(group)
            group, updates = [], updates + 1
    assert not group
    assert updates == order.updates_per_epoch


def test_epochs_and_seeds_differ() -> None:
    orders = {
        tuple(Order(50, 50, seed).indices(next(Order(50, 50, seed).steps(epoch))).tolist())
        for seed in (0, 1)
        for epoch in (0, 1)
    }
    assert len(orders) == 4


def test_memory_and_dataset_give_the_same_batches_in_the_same_order() -> None:
    x, y = torch.arange(40.0).reshape(20, 2), torch.arange(20)
    order = Order(20, 6, 0)

    class Rows(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 20

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            return x[index], int(y[index])

    for workers in (0, 1):
        memory = Batches(TensorSource(x, y), order, Shard(1, 2), keyed=True)
        dataset = Batches(DatasetSource(Rows(), None), order, Shard(1, 2), keyed=True, workers=workers)
        for epoch in (0, 1):
            for one, other in zip(memory.epoch(epoch, 1), dataset.epoch(epoch, 1), strict=True):
                assert torch.equal(one.input, other.input)
                assert torch.equal(one.target, other.target)
                assert torch.equal(one.keys, other.keys)  # type: ignore[arg-type]


def test_an_empty_shard_borrows_a_sample_that_does_not_count() -> None:
    order = Order(7, 3, 0)
    batches = list(Batches(TensorSource(torch.arange(7.0), torch.arange(7)), order, Shard(1, 2), keyed=False).epoch(0))
    assert [batch.count for batch in batches] == [1, 1, 0]
    assert len(batches[-1].input) == 1
    assert batches[-1].weight == 0


@given(samples=sizes, batch=st.integers(1, 70), accumulate=st.integers(1, 3), data=st.data())
@settings(max_examples=60, deadline=None)
def test_epochs_are_the_steps_of_a_fit_in_a_row(samples: int, batch: int, accumulate: int, data: st.DataObject) -> None:
    order = Order(samples, batch, 0, accumulate)
    total = data.draw(st.integers(0, 3 * order.steps_per_epoch))
    done = data.draw(st.integers(0, total))
    every = [step for epoch in range(3) for step in order.steps(epoch)][done:total]
    epochs = list(order.epochs(done, total))
    assert [step for epoch in epochs for step in epoch] == every
    for epoch in epochs:
        assert len({step.epoch for step in epoch}) == 1
        assert list(epoch[1:]) == list(epoch)[1:]
        assert (epoch[0], epoch[-1], len(epoch)) == (next(iter(epoch)), list(epoch)[-1], len(list(epoch)))


def test_an_epoch_of_very_many_steps_is_not_written_down() -> None:
    """An epoch was a list of its steps: a million of them took 200 MB on every rank before the first was made."""
    [epoch] = Order(10**15, 1, 0).epochs(7, 10**15)
    assert len(epoch) == 10**15 - 7
    assert (epoch[0].before, epoch[-1].before, next(iter(epoch)).before) == (7, 10**15 - 1, 7)
