"""The feed: batches as `Batches` reads them, seeded by the step, augmented by key, and nothing for who serves."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from manyhands.data import augment
from manyhands.data.batches import Batch, Batches
from manyhands.data.feed import RankFeed, each_once, step_seed
from manyhands.data.order import Order, Shard
from manyhands.data.sources import Source, make_source
from manyhands.record.clock import Clock

ORDER = Order(samples=23, batch_size=5, seed=3)
INPUT, TARGET = torch.randn(23, 4, generator=torch.Generator().manual_seed(1)), torch.arange(23)


def shifted(input: Tensor, keys: Tensor) -> Tensor:
    return input + augment.uniform(keys, 1)


def source_of(kind: str) -> Source:
    pairs = list(zip(INPUT, TARGET, strict=True))
    return make_source((INPUT, TARGET) if kind == "tensors" else pairs, None, "train")


def feed_of(kind: str = "tensors", shard: Shard | None = Shard(0, 2), **options: Any) -> RankFeed:  # noqa: B008
    return RankFeed(source_of(kind), ORDER, shard, clock=Clock(), device=torch.device("cpu"), **options)


def read(feed: RankFeed, done: int = 0, total: int = 10) -> list[Batch | None]:
    found = []
    for steps in ORDER.epochs(done, total):
        feed.begin(steps)
        found += [feed.next(step) for step in steps]
    return found


@pytest.mark.parametrize("kind", ["tensors", "dataset"])
def test_batches_come_read_and_augmented(kind: str) -> None:
    plain = Batches(source_of("tensors"), ORDER, Shard(0, 2), keyed=True)
    expected = [batch for epoch in range(2) for batch in plain.epoch(epoch)]
    for batch, other in zip(read(feed_of(kind, augment=shifted)), expected, strict=True):
        assert batch is not None
        assert other.keys is not None
        assert batch.step == other.step
        torch.testing.assert_close(batch.input, shifted(other.input, other.keys))
        assert torch.equal(batch.target, other.target)


def test_who_prepares_by_itself_gets_batches_as_they_were_read() -> None:
    feed = feed_of(augment=shifted)
    feed.prepares = False
    [batch] = read(feed, total=1)
    assert batch is not None
    assert batch.keys is not None
    before = batch.input.clone()
    feed.prepare(batch)
    assert torch.equal(batch.input, shifted(before, batch.keys))


def draws(feed: RankFeed, done: int, total: int) -> list[tuple[float, float, float]]:
    """What a step would draw from the generators of torch, Python and numpy."""
    found = []
    for steps in ORDER.epochs(done, total):
        feed.begin(steps)
        for step in steps:
            feed.next(step)
            found.append((torch.rand(()).item(), random.random(), float(np.random.rand())))
    return found


def test_a_resumed_fit_draws_the_same_numbers_and_every_step_and_process_its_own() -> None:
    whole = draws(feed_of("dataset"), 0, 10)
    assert draws(feed_of("dataset"), 6, 10) == whole[6:]
    other = draws(feed_of("dataset", process=1), 0, 10)
    assert len({number for numbers in (whole, other) for drawn in numbers for number in drawn}) == 60


def test_data_in_memory_leaves_the_generators_of_python_and_numpy_alone_unless_they_are_drawn_from() -> None:
    random.seed(5)
    expected = random.random()
    random.seed(5)
    read(feed_of(), total=3)
    assert random.random() == expected
    assert draws(feed_of(draws=True), 2, 3) == draws(feed_of(draws=True), 2, 3)


def test_who_serves_reads_nothing_but_draws_from_its_own_seed() -> None:
    feed = feed_of(shard=None, process=2)
    assert read(feed) == [None] * 10
    assert torch.initial_seed() == step_seed(ORDER.seed, 2, 9)
    assert list(feed.extra(next(ORDER.steps(0)))) == []


@pytest.mark.parametrize("seed", [0, -1, 2**70])
def test_seeds_are_63_bits_and_all_differ(seed: int) -> None:
    seeds = {step_seed(seed, process, step) for process in range(4) for step in range(600)}
    assert len(seeds) == 2400
    assert all(0 <= value < 2**63 for value in seeds)


@pytest.mark.parametrize("kind", ["tensors", "dataset"])
def test_evaluation_reads_every_sample_once_in_order(kind: str) -> None:
    parts = list(each_once(source_of(kind), 10, torch.device("cpu")))
    assert [count for _, _, count in parts] == [10, 10, 3]
    assert torch.equal(torch.cat([input for input, _, _ in parts]), INPUT)
    assert torch.equal(torch.cat([target for _, target, _ in parts]), TARGET)


@pytest.mark.parametrize("kind", ["tensors", "dataset"])
def test_kept_batches_are_read_once_and_used_for_every_step(kind: str) -> None:
    """What a step costs without reading is measured so: augmentation still happens to each of them."""
    first = read(feed_of(kind, augment=shifted), total=3)
    kept = read(feed_of(kind, augment=shifted, keep=3), total=10)
    assert [batch and batch.step for batch in kept] == [batch and batch.step for batch in read(feed_of(kind))]
    for place, batch in enumerate(kept):
        in_epoch = place % 5  # the third epoch's step comes from the start again
        expected = first[in_epoch % 3 if place >= 5 or in_epoch < 3 else (in_epoch - 3) % 3]
        assert batch is not None
        assert expected is not None
        torch.testing.assert_close(batch.input, expected.input)
        assert torch.equal(batch.target, expected.target)
