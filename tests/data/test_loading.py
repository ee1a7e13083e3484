"""Samples read one by one: the same by any number of workers, and as many workers as help."""

from __future__ import annotations

import random
import re
import sqlite3
import sys
import time
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, Subset

from manyhands.data.loading import Auto, DatasetSource, Trial, Use, choose
from tests.breakable import toy
from tests.conftest import distance, quick_fit

INPUT = torch.randn(120, 12, generator=torch.Generator().manual_seed(1))


class Drawing(Dataset):
    """Every sample drawn at random anew, from each of the generators a transform may use."""

    def __len__(self) -> int:
        return len(INPUT)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        noise = torch.rand(12) + random.random() + float(np.random.rand())
        return INPUT[index] + noise, int(INPUT[index, 0] > 0)


class Waiting(Drawing):
    """Samples that take their time without needing a core for it."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        time.sleep(0.004)
        return super().__getitem__(index)


def test_what_a_dataset_draws_depends_on_the_sample_alone() -> None:
    """Draws once came from a generator seeded by rank, step and worker: ddp trained on other images than single."""
    task = toy(train=Drawing(), test=None)
    alone, together = quick_fit(task), quick_fit(task, "ddp", ranks=2, loader_workers=1)
    assert distance(alone, together) < 1e-5


def test_epochs_draw_anew_and_reading_many_at_once_is_used() -> None:
    class Many(Drawing):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            return [(torch.rand(1), index) for index in indices]

    source, indices = DatasetSource(Drawing(), None), torch.tensor([3, 5])
    one, again, other = (source.read(indices, torch.tensor(keys))[0] for keys in ([1, 2], [1, 2], [3, 4]))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert DatasetSource(Many(), None).read(indices, torch.tensor([1, 2]))[1].tolist() == [3, 5]


@pytest.mark.parametrize(
    ("steps", "waits", "kept", "tried"),
    [
        ([5.0], [0.1], 0, 1),  # nothing to wait for
        ([10, 6, 4], [6, 2, 0.1], 2, 3),  # the smallest that leaves no wait
        ([51, 50, 25, 17], [50, 49, 24, 16], 3, 4),  # a loader far behind: the first worker hardly shows
        ([10, 11, 12, 13], [6, 7, 8, 9], 0, 3),  # no core to spare: two more did not help
        ([10, 6, 6, 6, 6], [6, 2, 2, 2, 2], 1, 4),
    ],
)
def test_the_smallest_number_that_helps_is_kept(steps: list[float], waits: list[float], kept: int, tried: int) -> None:
    search = choose(most=len(steps) - 1)
    assert next(search) == 0
    for number in range(tried - 1):
        assert search.send(Trial(steps[number], waits[number])) == number + 1
    with pytest.raises(StopIteration) as end:
        search.send(Trial(steps[tried - 1], waits[tried - 1]))
    assert end.value.value == kept


@pytest.mark.parametrize(
    ("steps", "kept", "tried"),
    [
        ({0: 50, 1: 49, 2: 25, 4: 13, 8: 13, 16: 13}, 4, [0, 1, 2, 4, 8, 16]),  # cores do not matter to who waits
        ({0: 50, 1: 49, 2: 25, 4: 13, 8: 7, 16: 4}, 16, [0, 1, 2, 4, 8, 16]),
        ({0: 50, 1: 49, 2: 48}, 0, [0, 1, 2]),  # a disk that serves one at a time
    ],
)
def test_more_workers_than_cores_are_tried_where_reading_waits(
    steps: dict[int, float], kept: int, tried: list[int]
) -> None:
    """On two cores the search once ended at one worker per rank: 518 samples/s where four give 1,490."""
    search = choose(most=1)
    assert next(search) == 0
    for last, workers in pairwise(tried):
        assert search.send(Trial(steps[last], steps[last] - 1, idle=True)) == workers
    with pytest.raises(StopIteration) as end:
        search.send(Trial(steps[tried[-1]], steps[tried[-1]] - 1, idle=True))
    assert end.value.value == kept


def test_waiting_is_told_from_computing_and_from_a_stolen_core() -> None:
    start = Use(0, 0, 0)
    assert Use(100, 10, 3).idle_since(start)
    assert not Use(100, 95, 3).idle_since(start)
    assert not Use(100, 10, 0).idle_since(start)  # others had the core
    before = Use.now()
    time.sleep(0.01)
    assert Use.now().idle_since(before) == sys.platform.startswith("linux")


def test_trials_are_timed_without_their_first_steps() -> None:
    notes: list[str] = []
    auto, now = Auto(1, notes.append), 0
    while not auto.found:
        auto.step(now, {0: 5_000_000, 1: 0}[auto.workers])
        now += {0: 10_000_000, 1: 6_000_000}[auto.workers] * (9 if auto._unsettled else 1)
        assert now < 10**10
    assert notes == [
        "loader_workers=auto keeps 1 (0: 10.00 ms per step, 5.00 of it waiting; 1: 6.00 ms per step, 0.00 of it waiting)"
    ]


@pytest.mark.soak
def test_auto_starts_workers_where_loading_is_slow_and_says_so() -> None:
    task = toy(train=Waiting(), test=None, batch_size=4, epochs=7)
    plain = quick_fit(task.replace(train=Drawing()), max_steps=200)
    run = quick_fit(task, max_steps=200, loader_workers="auto")
    assert distance(plain, run) == 0
    (note,) = run.notes
    assert re.match(r"loader_workers=auto keeps [0-9]+ \(0: ", note)


def test_auto_needs_no_workers_for_data_in_memory() -> None:
    assert quick_fit(toy(), max_steps=2, loader_workers="auto").notes == [
        "loader_workers=auto keeps 0 (the data is in memory)"
    ]


class Opening(Drawing):
    """Opens what it reads from with its first sample, as is recommended for HDF5 and LMDB."""

    connection: sqlite3.Connection | None = None

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self.connection = self.connection or sqlite3.connect(":memory:")
        self.rows = INPUT
        return INPUT[index], index % 2


@pytest.mark.parametrize("wrapped", [False, True])
def test_what_a_dataset_opens_with_its_first_sample_stays_here(wrapped: bool) -> None:
    """The samples that are tried before the start once left an open connection behind, which no rank can be sent."""
    opening = Opening()
    train = Subset(ConcatDataset([opening]), range(60)) if wrapped else opening
    assert quick_fit(toy(train=train, test=None), "ddp", ranks=2, max_steps=2).status == "done"
    assert opening.connection is None
    assert opening.rows is INPUT  # what can be sent is, and is not read again on every rank
