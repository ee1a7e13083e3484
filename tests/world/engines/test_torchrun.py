"""A rank that torchrun started: what rank 0 makes or refuses reaches all of them. The ranks here are of our own launch, in
torchrun's environment."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest
import torch

from manyhands.errors import BadInput, RankFailed
from manyhands.world.engines.engine import World
from manyhands.world.engines.torchrun import Torchrun
from manyhands.world.launch.processes import LaunchedProcess, launch

WORLD = World(2, 2, [torch.device("cpu")] * 2, threads=1)


def under_torchrun(body: Any) -> list[Any]:
    """What two processes give back that think torchrun has started them."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    here = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_WORLD_SIZE": "2"}
    return launch(body, 2, environment=here, time_limit=60)


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
        return engine.leads, engine.may_restart, engine.ranks_here(4)

    assert under_torchrun(body) == [(True, False, 2), (False, False, 2)]


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
