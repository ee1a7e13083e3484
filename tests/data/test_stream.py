"""Streams: every strategy makes the agreed number of steps on the global batches of single."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

import manyhands as mh
from manyhands.data.batches import Batches
from manyhands.data.order import Order, Shard
from manyhands.data.sources import make_source
from manyhands.data.stream import StreamSource
from manyhands.errors import BadInput, Refused
from tests.breakable import toy
from tests.conftest import distance, quick_fit

INPUT = torch.randn(101, 12, generator=torch.Generator().manual_seed(1))


class Lines(IterableDataset):
    """A stream without a length, whose order is drawn from Python's generator."""

    def __init__(self, samples: int = 101):
        self.samples = samples

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        order = list(range(self.samples))
        random.shuffle(order)
        for index in order:
            yield INPUT[index] + 0.01 * random.random(), int(INPUT[index, 0] > 0)


class Counted(Lines):
    """One that says how long it is, truly or not."""

    def __init__(self, samples: int = 101, says: int | None = None):
        super().__init__(samples)
        self.says = samples if says is None else says

    def __len__(self) -> int:
        return self.says


class Numbers(IterableDataset):
    """0, 1, 2, ..."""

    def __init__(self, samples: int, says: int | None = None):
        self.samples, self.says = samples, says

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        return ((torch.tensor([float(number)]), number) for number in range(self.samples))

    def __len__(self) -> int:
        if self.says is None:
            raise TypeError("no length")
        return self.says


def stream_task(train: Any, **changes: Any) -> mh.Task:
    return toy(train=train, **{"epochs": 1, **changes})


@pytest.mark.parametrize(("strategy", "ranks"), [("ddp", 2), ("pipeline", 3), ("parameter_server", 2)])
def test_a_stream_trains_as_in_single(strategy: str, ranks: int) -> None:
    """101 samples in batches of 16: the last batch has 5. A stage in the middle and a server know the steps unread."""
    task = stream_task(Counted(), epochs=2, test=Counted(50))
    alone, together = quick_fit(task), quick_fit(task, strategy, ranks=ranks)
    assert (alone.steps, alone.samples) == (together.steps, together.samples) == (14, 202)
    assert distance(alone, together) < 1e-5
    assert [e["samples"] for e in together.epochs] == [101, 101]
    assert together.test is not None
    assert together.test["samples"] == 50
    assert together.exact


def test_without_a_length_max_steps_is_the_agreement() -> None:
    """The stream ends in the middle of step 7 of 20 and is read again: no rank runs out of samples before another."""
    task = stream_task(Lines())
    alone, together = quick_fit(task, max_steps=20), quick_fit(task, "ddp", ranks=2, max_steps=20, loader_workers=1)
    assert (together.steps, together.samples, together.status) == (20, 320, "done")
    assert distance(alone, together) < 1e-5
    for run in (alone, together):
        assert run.notes == ["task.train ended after 101 samples; it was read again from its start"]


def test_a_length_that_promises_too_much_is_noted() -> None:
    run = quick_fit(stream_task(Counted(40, says=100)), "hogwild", ranks=2)
    assert (run.steps, run.samples) == (7, 100)
    note = "task.train ended after 40 samples of the 100 its length promises; it was read again from its start"
    assert note in run.notes


def test_a_resumed_stream_skips_forward(tmp_path: Path) -> None:
    task = stream_task(Lines(), schedule=None)
    whole = quick_fit(task, max_steps=9)
    quick_fit(task, max_steps=5, run_dir=tmp_path, checkpoint_every=5)
    resumed = quick_fit(task, "ddp", ranks=2, max_steps=9, run_dir=tmp_path, resume=True)
    assert resumed.resumed_from is not None
    assert resumed.resumed_from["step"] == 5
    assert resumed.samples == whole.samples == 144
    assert distance(whole, resumed) < 1e-5


def test_a_schedule_without_a_length_spans_max_steps() -> None:
    spans = []

    def schedule(optimizer: torch.optim.Optimizer, updates: int) -> Any:
        spans.append(updates)
        raise ValueError(updates)

    with pytest.raises(mh.BadInput, match=r"task\.schedule failed for 4 updates: ValueError: 4"):
        quick_fit(stream_task(Lines(), schedule=schedule), max_steps=7, accumulate=2)


def test_shards_of_a_stream_join_to_its_batches() -> None:
    source = StreamSource(Numbers(23, says=23), None)
    for ranks in (1, 2, 5):
        order = Order(23, 6, seed=0)
        feeds = [Batches(source, order, Shard(rank, ranks), keyed=True).epoch(0, first=1) for rank in range(ranks)]
        steps = [list(step) for step in zip(*feeds, strict=True)]
        seen = [[int(t) for b in step for t in b.target[: b.count]] for step in steps]
        assert seen == [[6, 7, 8, 9, 10, 11], [12, 13, 14, 15, 16, 17], [18, 19, 20, 21, 22]]
        assert all(len(b.input) == max(1, b.count) == len(b.keys) for step in steps for b in step)


def test_a_stage_in_the_middle_counts_without_reading() -> None:
    """It once asked for the permutation of a stream without a length: more numbers than there is memory."""
    source = StreamSource(Numbers(0), None)
    unread = Batches(source, Order(len(source), 6, seed=0), Shard(input=False, target=False), keyed=True).epoch(0)
    assert next(unread).count == 6


@pytest.mark.parametrize(
    ("strategy", "train", "keywords", "message"),
    [
        ("ddp", Lines(), {}, r"stream without a length.*give max_steps \(--max-steps\), or give it a __len__"),
        ("ddp", Lines(), {"max_steps": 5, "epochs": 2}, r"2 epochs cannot be told apart; use epochs=1 with max_steps"),
        (
            "ddp",
            Counted(),
            {"loader_workers": 2},
            r"one worker process per rank \(loader_workers: 2\); use 0, 1 or auto",
        ),
        ("ddp", Counted(0), {}, r"task.train holds no samples \(length 0\)"),
        ("single", Lines(0), {"max_steps": 5}, r"a stream that gave no samples"),
        ("hogwild:partition=fixed", Counted(), {}, r"hogwild cannot give each rank its own part of a stream"),
        ("hogwild", Counted(), {"on_death": "continue"}, r"cannot read a dead rank's part of a stream again"),
    ],
)
def test_refusals(strategy: str, train: Any, keywords: dict[str, Any], message: str) -> None:
    with pytest.raises((BadInput, Refused), match=message):
        quick_fit(stream_task(train), strategy, ranks=None if strategy == "single" else 2, **keywords)


def test_a_test_stream_must_say_where_it_ends() -> None:
    with pytest.raises(BadInput, match=r"task.test is a stream that does not say where it ends; give it a __len__"):
        make_source(Lines(), None, "test")
    with pytest.raises(BadInput, match=r"task.train is a stream that does not say where it ends"):
        mh.evaluate(stream_task(Lines()), {}, data="train")


def test_a_stream_that_starts_only_once_ends_the_run() -> None:
    class Once(Lines):
        def __iter__(self) -> Iterator[tuple[Tensor, int]]:
            for number in range(0 if getattr(self, "read", False) else 40):
                self.read = number > 35  # the look at the first samples does not count
                yield INPUT[number], 0

    with pytest.raises(mh.RankFailed, match=r"rank \d of 2 failed in step 3, load: .*must start from the beginning"):
        quick_fit(stream_task(Once()), "ddp", ranks=2, max_steps=9)
