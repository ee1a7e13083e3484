"""A rank that torchrun started: what rank 0 makes or refuses reaches all of them. The ranks here are of our own launch, in
torchrun's environment."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import pytest
import torch

from manyhands.errors import BadInput, RankFailed, Refused
from manyhands.strategies import make_strategy
from manyhands.strategies.contract import processes
from manyhands.world.engines.engine import World
from manyhands.world.engines.torchrun import Torchrun, leads
from manyhands.world.launch.processes import LaunchedProcess, launch
from tests.conftest import free_port

WORLD = World(2, 2, [torch.device("cpu")] * 2, threads=1)


def under_torchrun(body: Any, processes: int = 2) -> list[Any]:
    """What processes give back that think torchrun has started them."""
    here = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "LOCAL_WORLD_SIZE": str(processes)}
    return launch(body, processes, environment=here, time_limit=60)


def test_what_one_makes_or_refuses_is_everybodys(nothing_left: None) -> None:
    def body(process: LaunchedProcess) -> Any:
        engine, made = Torchrun(), list[str]()

        def refuse() -> None:
            raise BadInput("not this task")

        def train(rank: Any) -> Any:
            rank.shared["numbers"][rank.index] = rank.index + 1
            rank.barrier()
            return rank.shared["numbers"].tolist()

        before = torch.get_num_threads()
        with engine.joined(WORLD, print, print):
            agreed = engine.once(lambda: made.append("here") or os.getpid())
            with pytest.raises(BadInput, match="not this task"):
                engine.once(refuse)
            ready = lambda: made.append("ready")  # noqa: E731
            found = engine.run(train, {"numbers": torch.zeros(2)}, ready, lambda *_: False, None)
        return agreed, made, found, torch.get_num_threads() == before

    (pid, made, found, tidy), other = under_torchrun(body)
    assert made == ["here", "ready"]
    assert other == (pid, [], found, True)
    assert found == [1.0, 2.0]
    assert tidy


def test_a_failure_on_the_way_names_the_rank(nothing_left: None) -> None:
    def body(process: LaunchedProcess) -> Any:
        engine = Torchrun()

        def fail(rank: Any) -> None:
            rank.say("start-up")
            rank.barrier()
            raise ZeroDivisionError

        def run() -> None:
            with engine.joined(WORLD, print, print):
                engine.run(fail, None, lambda: None, lambda *_: False, None)

        with pytest.raises(RankFailed, match=f"rank {process.index} of 2 failed in start-up: ZeroDivisionError"):
            run()
        return engine.leads, engine.may_restart

    assert under_torchrun(body) == [(True, False), (False, False)]


def test_what_torchrun_cannot_start_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    engine = Torchrun()
    assert engine.hosts == 2
    with pytest.raises(
        BadInput, match="torchrun started 2 processes but ddp needs 3; use --ranks 2 or --nproc-per-node 3"
    ):
        engine.check(3, "ddp", False)
    with pytest.raises(BadInput, match="torchrun ends all ranks when one dies"):
        engine.check(2, "hogwild", True)


def test_fits_that_need_fewer_processes_end_alike_on_all(nothing_left: None) -> None:
    """A comparison: what one process refuses or meets is everybody's row, also of those that only waited for it."""

    def body(process: LaunchedProcess) -> Any:
        engine, said = Torchrun(), list[Any]()

        def fit(what: str) -> Any:
            engine.check(2, "ddp", False)

            def train(rank: Any) -> Any:
                if what == "raises" and rank.index == 1:
                    raise ZeroDivisionError
                rank.barrier()
                return {"steps": 5 + rank.index, "weights": rank.index}

            if what == "refuses" and engine.index == 1:
                raise Refused("not on this host")
            with engine.joined(WORLD, print, print):
                return engine.run(train, None, lambda: None, lambda *_: False, None)

        for what in ("works", "refuses", "raises", "works"):
            try:
                found = engine.together(2, partial(fit, what), lambda run: {**run, "weights": None}, part=True)
                said.append(found)
            except (Refused, RankFailed) as problem:
                said.append((type(problem).__name__, str(problem), problem.told))
        return said, engine.agreed(lambda: engine.index), engine.hosts

    lead, second, idle = under_torchrun(body, 3)
    whole, light = {"steps": 5, "weights": 0}, {"steps": 5, "weights": None}
    refused = ("Refused", "not on this host")
    failed = ("RankFailed", "rank 1 of 2 failed in start-up: ZeroDivisionError: ")
    for (found, agreed, hosts), run, told in ((lead, whole, False), (second, light, True), (idle, light, True)):
        assert found == [run, (*refused, told), (*failed, told), run]
        assert (agreed, hosts) == (0, 1)


def test_what_cannot_be_had_of_torchrun_is_refused_on_all(nothing_left: None) -> None:
    def body(process: LaunchedProcess) -> Any:
        engine, found = Torchrun(), list[str]()

        def limited() -> None:
            with engine.joined(WORLD, print, print):
                engine.run(lambda rank: None, None, lambda: None, lambda *_: False, 60.0)

        def refuse() -> None:
            raise BadInput("no such strategy")

        def wide() -> None:
            engine.check(3, "ddp", False)

        for ask in (
            lambda: engine.together(2, limited, lambda run: run, part=False),
            lambda: engine.together(3, wide, lambda run: run, part=True),
            lambda: engine.agreed(refuse),
        ):
            with pytest.raises(BadInput) as refusal:
                ask()
            found.append(str(refusal.value))
        return found

    first, second = under_torchrun(body)
    assert first == second
    assert first == [
        "time_limit (--time-limit) cannot be kept under torchrun, which ends all or nothing",
        "torchrun started 2 processes but ddp needs 3; use --ranks 2 or --nproc-per-node 3",
        "no such strategy",
    ]


def test_ranks_that_nobody_asked_for_are_as_many_as_torchrun_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """`torchrun --nproc-per-node 3 ... train glyphs ddp` was refused on a machine of two cores."""
    place = {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29504"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    assert make_strategy("ddp").ranks == 3
    assert processes(make_strategy("parameter_server")) == 3
    assert leads()
    monkeypatch.setenv("RANK", "1")
    assert not leads()
