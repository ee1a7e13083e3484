"""Ranks of our own: the function runs on each of them, and nothing happens before everything is packed."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
import torch

from manyhands.errors import BadInput, RankFailed
from manyhands.world.engines.engine import World
from manyhands.world.engines.local import Local
from manyhands.world.rank import Rank

WORLD = World(2, 2, [torch.device("cpu")] * 2, threads=1)


def unforgiving(*_: Any) -> bool:
    return False


def test_every_rank_runs_the_function_and_talks_to_the_caller(nothing_left: None) -> None:
    heard: list[tuple[str, Any]] = []
    engine, order = Local(), list[str]()

    def body(rank: Rank) -> Any:
        number = torch.full((1,), rank.index + 1.0)
        rank.all_reduce(number)
        rank.tell("sum", number.item())
        rank.barrier()
        return (rank.ask("double", rank.shared["seven"].item()), rank.device.type) if rank.leads else None  # type: ignore[index]

    with engine.joined(WORLD, lambda *said: heard.append(said), lambda kind, content: 2 * content):
        assert engine.once(lambda: "made here") == "made here"
        shared = {"seven": torch.tensor([7.0])}
        found = engine.run(body, shared, lambda: order.append("ready"), unforgiving, time_limit=60)
    assert found == (14.0, "cpu")
    assert heard == [("sum", 3.0)] * 2
    assert order == ["ready"]


def test_nothing_is_ready_where_the_function_cannot_be_sent(nothing_left: None) -> None:
    engine, lock = Local(), threading.Lock()
    with engine.joined(WORLD, print, print), pytest.raises(TypeError, match="pickle"):
        engine.run(lambda rank: lock, None, lambda: pytest.fail("it was not sent"), unforgiving, None)


def test_a_failure_names_the_rank(nothing_left: None) -> None:
    engine = Local()
    with engine.joined(WORLD, print, print), pytest.raises(RankFailed, match="ZeroDivisionError") as failure:
        engine.run(lambda rank: 1 // (1 - rank.index), None, lambda: None, unforgiving, 60)
    assert failure.value.rank == 1
    assert engine.may_restart


def test_more_processes_than_descriptors_are_refused() -> None:
    engine, many = Local(), replace(WORLD, processes=10_000)
    with engine.joined(many, print, print), pytest.raises(BadInput, match="10000 processes need more file descriptors"):
        engine.run(lambda rank: None, None, lambda: pytest.fail("it was refused"), unforgiving, None)
