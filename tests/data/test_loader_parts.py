"""A DataLoader is taken apart; what of it cannot be kept is refused with the way out, or noted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import manyhands as mh
from manyhands.data.loader_parts import LoaderParts
from tests.conftest import distance, make_task, quick_fit

X = torch.randn(50, 20, generator=torch.Generator().manual_seed(1))
DATA = TensorDataset(X, (X.sum(1) > 0).long())


class Numbers(IterableDataset):
    def __iter__(self) -> Iterator[int]:
        return iter(range(9))


class Backwards(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(49, -1, -1))


def keep(samples: list[Any]) -> list[Any]:
    return samples


def test_what_a_loader_held() -> None:
    parts = LoaderParts.of(DataLoader(DATA, batch_size=4, shuffle=True, drop_last=True, num_workers=2), "train")
    assert (parts.dataset, parts.batch_size, parts.collate, parts.drop_last, parts.workers) == (DATA, 4, None, True, 2)
    assert parts.notes == ()
    assert LoaderParts.of(DataLoader(DATA, collate_fn=keep, shuffle=True), "train").collate is keep
    assert LoaderParts.of(DataLoader(Numbers(), batch_size=3), "train").notes == ()


def test_what_is_not_used_is_noted() -> None:
    train = LoaderParts.of(DataLoader(DATA, worker_init_fn=print), "train").notes
    assert "does not shuffle; here every epoch has an order of its own" in train[0]
    assert "the worker_init_fn of task.train's DataLoader is not called" in train[1]
    (test,) = LoaderParts.of(DataLoader(DATA, drop_last=True), "test").notes
    assert "here every sample is evaluated" in test


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (
            {"sampler": WeightedRandomSampler([1.0] * 50, 50)},
            r"has a WeightedRandomSampler, but .*; weigh the loss instead",
        ),
        (
            {"sampler": DistributedSampler(DATA, 2, 0)},
            r"has a DistributedSampler, .*; leave it out: every rank is given",
        ),
        (
            {"sampler": SubsetRandomSampler([1])},
            r"a SubsetRandomSampler, .* torch.utils.data.Subset\(dataset, indices\)",
        ),
        ({"sampler": RandomSampler(DATA, replacement=True)}, r"leave out replacement and num_samples"),
        ({"sampler": RandomSampler(DATA, num_samples=5)}, r"leave out replacement and num_samples"),
        ({"sampler": Backwards()}, r"has a Backwards, but which samples make a batch is decided here, .* shuffle=True"),
        (
            {"batch_sampler": BatchSampler(SequentialSampler(DATA), 4, False)},
            r"a batch sampler of its own \(BatchSampler\)",
        ),
        ({"batch_size": None}, r"the DataLoader of task.train has batch_size=None"),
    ],
)
def test_samplers_of_their_own_are_refused(loader: dict[str, Any], message: str) -> None:
    with pytest.raises(mh.BadInput, match=message):
        make_task(train=DataLoader(DATA, **loader))


def test_the_batch_size_is_the_loader_s_or_the_task_s() -> None:
    task = make_task(train=DataLoader(DATA, batch_size=6), test=DataLoader(DATA, batch_size=9), batch_size=128)
    assert (task.batch_size, task.eval_batch_size) == (6, 9)
    assert task.replace(batch_size=10).batch_size == 10  # as --batch-size does
    with pytest.raises(
        mh.BadInput, match=r"task.batch_size is 7, but the DataLoader of task.train has batch_size=6; give"
    ):
        make_task(train=DataLoader(DATA, batch_size=6), batch_size=7)
    with pytest.raises(
        mh.BadInput, match=r"task.eval_batch_size is 7, but the DataLoader of task.test has batch_size=6"
    ):
        make_task(test=DataLoader(DATA, batch_size=6), eval_batch_size=7)
    with pytest.raises(mh.BadInput, match=r"has a collate_fn, and task.collate is another; give one of the two"):
        make_task(train=DataLoader(DATA, batch_size=30, collate_fn=keep), collate=print)


def test_a_fit_on_a_loader_is_the_fit_on_its_parts() -> None:
    whole = quick_fit(make_task(train=DATA, test=None, batch_size=8, epochs=1))
    loaded = quick_fit(make_task(train=lambda: DataLoader(DATA, 8, shuffle=True), test=None, batch_size=128, epochs=1))
    assert distance(whole, loaded) == 0
    assert (loaded.batch_size, loaded.steps, loaded.notes) == (8, 7, [])


def test_drop_last_and_workers_come_from_the_loader() -> None:
    loader = DataLoader(list(DATA), 8, shuffle=True, drop_last=True, num_workers=1)
    run = quick_fit(make_task(train=loader, test=None, batch_size=128, epochs=2))
    assert (run.steps, run.samples) == (12, 96)
    assert run.notes == ["loader_workers=1, as the DataLoader of task.train says"]
    other = quick_fit(make_task(train=loader, test=None, batch_size=128, epochs=2), "ddp", ranks=2, loader_workers=0)
    assert distance(run, other) < 1e-6
    assert other.notes == []
    with pytest.raises(
        mh.BadInput, match=r"50 samples, fewer than the batch_size of 64, .*drop_last=True\): nothing is left"
    ):
        quick_fit(make_task(train=DataLoader(DATA, 64, drop_last=True), batch_size=128))
