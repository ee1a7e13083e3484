"""Ranks on a Ray cluster of two nodes on this machine: the same weights, failures with their host, nothing left behind."""

from __future__ import annotations

import importlib
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import manyhands as mh
from manyhands.world.agents.actors import ActorLine, NodePlace, RayAgents, lost
from manyhands.world.engines import ray as engine_file
from manyhands.world.engines.choose import opened
from manyhands.world.engines.remote import Remote
from tests.breakable import BreakingLoss, toy
from tests.conftest import distance, free_port
from tests.ray_cluster import ray_nodes


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with ray_nodes({"num_cpus": 2}, {"num_cpus": 2}) as made:
        yield made


@pytest.fixture(scope="module")
def four(cluster: Any) -> Iterator[Remote]:
    """One pair of agents for all fits that break nothing."""
    with opened(f"ray:address={cluster.address}") as engine:
        assert isinstance(engine, Remote)
        engine.reserve(4)
        yield engine


# ---------------------------------------------------------------- before anything starts


def test_without_ray_the_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(mh.BadInput, match=r"ray is not installed here; use pip install 'manyhands\[ray\]'"):
        mh.fit(toy(), "ddp", ranks=2, on="ray")


@pytest.mark.parametrize(
    ("address", "message"),
    [
        (
            "127.0.0.1:{port}",
            "no Ray cluster answers at 127.0.0.1:[0-9]+ \\(Connection refused\\); use --on ray:address=",
        ),
        ("ray://127.0.0.1:{port}", "no Ray cluster answers at ray://127.0.0.1:[0-9]+ \\(Connection refused\\)"),
        ("no.such.host.invalid:6379", "no Ray cluster answers at no.such.host.invalid:6379"),
        ("http://127.0.0.1:8265", '"http://127.0.0.1:8265" is not the address of a Ray cluster'),
        ("head", '"head" is not the address of a Ray cluster; use --on ray:address=HOST:6379'),
    ],
)
def test_an_address_nobody_listens_on_is_one_line_at_once(address: str, message: str) -> None:
    """Ray itself tried for 80 seconds and then ended the process."""
    pytest.importorskip("ray", reason="ray is not installed")
    began = time.monotonic()
    with pytest.raises(mh.BadInput, match=message) as refused:
        mh.fit(toy(), "ddp", ranks=2, on=mh.Ray(address.format(port=free_port())))
    assert time.monotonic() - began < 60  # a name that nobody knows takes as long as those who are asked for it
    assert "\n" not in str(refused.value)


def test_whoever_listens_must_be_ray() -> None:
    """Ray waited for minutes for a web server to become a cluster."""
    pytest.importorskip("ray", reason="ray is not installed")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            line, _ = listener.accept()
            with line:
                line.recv(64)
                line.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        port = listener.getsockname()[1]
        with pytest.raises(mh.BadInput, match=f"what listens at 127.0.0.1:{port} is not a Ray cluster"):
            mh.fit(toy(), "ddp", ranks=2, on=f"ray:address=127.0.0.1:{port}")


def test_no_cluster_here_says_how_to_start_one(monkeypatch: pytest.MonkeyPatch) -> None:
    services = pytest.importorskip("ray._private.services", reason="ray is not installed")

    def nothing(_: str) -> str:
        raise ConnectionError("Could not find any running Ray instance.")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(services, "canonicalize_bootstrap_address", nothing)
    with pytest.raises(mh.BadInput, match="no Ray cluster runs here; use ray start --head, or --on ray:address="):
        mh.fit(toy(), "ddp", ranks=2, on="ray")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cpus_per_rank": 0}, "ray: cpus_per_rank must be a whole number of at least 1 \\(found 0\\)"),
        ({"gpus_per_rank": 0.5}, "ray: gpus_per_rank must be a whole number of at least 0 \\(found 0.5\\)"),
        ({"address": ""}, "ray: address must be auto, host:port or ray://host:port"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(mh.BadInput, match=message):
        mh.Ray(**options)


def test_words_that_overtake_each_other_are_put_in_order() -> None:
    line = ActorLine()
    for number in (1, 2, 0):
        line.hear(number, f"word {number}", None)
    assert [line.receive()[0] for _ in range(3)] == ["word 0", "word 1", "word 2"]
    line.close()
    with pytest.raises(EOFError):
        line.receive()


# ---------------------------------------------------------------- room


def test_more_ranks_than_the_cluster_has(cluster: Any) -> None:
    message = r"ray has room for 4 processes of 1 CPU each \(\S+: 2, \S+: 2\), but 9 are needed; use fewer ranks or add"
    with pytest.raises(mh.BadInput, match=message):
        mh.fit(toy(), "ddp", ranks=9, on=mh.Ray(cluster.address))
    with pytest.raises(mh.BadInput, match=r"room for 0 processes of 3 CPUs and 1 GPU each"):
        mh.fit(toy(), "ddp", ranks=1, on=mh.Ray(cluster.address, cpus_per_rank=3, gpus_per_rank=1))


def test_who_waits_for_room_says_for_what(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    monkeypatch.setattr(engine_file, "RayAgents", lambda places, group, *_: (places, group))
    monkeypatch.setattr(engine_file, "MOMENT", 0.3)
    value = mh.Ray(cluster.address)
    with value.connected():
        others = placement_group([{"CPU": 1}] * 3)
        assert others.wait(30)
        said: list[str] = []

        def say(text: str) -> None:
            said.append(text)
            remove_placement_group(others)

        places, group = value.start(value.plan(4), say)  # type: ignore[misc]
        remove_placement_group(group)
        assert sum(place.processes for place in places) == 4
    assert re.match(r"ray: waiting for room for 4 processes of 1 CPU each \(2 on \S+, 2 on \S+\): others hold", said[0])
    assert not ray.is_initialized()


def test_a_cluster_that_goes_while_one_waits_is_one_line(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's own exception came through with its traceback."""

    # Ray loses the CPU of a group that is removed while it is being made, and later tests found no room.
    def gone(_: mh.Ray, group: Any, *__: Any) -> None:
        assert group.wait(30)
        raise Exception("Placement group does not exist.")

    monkeypatch.setattr(mh.Ray, "_wait_for", gone)
    value = mh.Ray(cluster.address)
    with value.connected(), pytest.raises(mh.RankFailed, match=r"the Ray cluster went away before it .*does not exist"):
        value.start(value.plan(1), print)


def test_a_connection_that_was_there_before_is_used_and_stays(cluster: Any) -> None:
    import ray

    ray.init(cluster.address, log_to_driver=False)
    try:
        with mh.Ray().connected():
            assert len(ray.nodes()) == 2
        assert ray.is_initialized()
        with (
            pytest.raises(mh.BadInput, match=r"is connected to the Ray cluster at \S+ already"),
            mh.Ray("127.0.0.1:1").connected(),
        ):
            pass
    finally:
        ray.shutdown()


def test_a_node_that_is_gone_is_left_out_before_ray_knows(cluster: Any) -> None:
    value = mh.Ray(cluster.address)
    with value.connected():
        gone = value.plan(1)[0]
        lost[gone.node] = time.monotonic()  # type: ignore[attr-defined]
        try:
            assert gone.host not in [place.host for place in value.plan(1)]
        finally:
            lost.clear()


# ---------------------------------------------------------------- fits


def test_the_same_weights_as_local_ranks_over_two_nodes(four: Remote, capfd: pytest.CaptureFixture[str]) -> None:
    here = mh.fit(toy(), "ddp", ranks=4, max_steps=5, progress=False)
    there = mh.fit(toy(), "ddp", ranks=4, max_steps=5, progress=False, on=four)
    hosts = [one["host"] for one in there.per_rank or []]
    assert hosts[0] == hosts[1] != hosts[2] == hosts[3]
    assert distance(here, there) < 1e-6
    assert capfd.readouterr().out == ""


def test_two_ranks_of_one_node_talk_through_shared_memory(four: Remote) -> None:
    here = mh.fit(toy(), "ddp", ranks=2, max_steps=5, progress=False)
    there = mh.fit(toy(), "ddp", ranks=2, max_steps=5, progress=False, on=four)
    assert there.weights_sha256 == here.weights_sha256


def test_a_failure_names_rank_host_and_step_and_brings_its_traceback(
    four: Remote,
) -> None:
    task = toy(loss=BreakingLoss(lambda: 1 / 0, call=3, rank=3))
    with pytest.raises(mh.RankFailed, match=r"rank 3 of 4 on \S+ failed in step 3.*ZeroDivisionError") as failed:
        mh.fit(task, "ddp", ranks=4, max_steps=9, progress=False, on=four)
    assert "breakable.py" in (failed.value.traceback or "")
    assert failed.value.host == four.places[1].host


def test_what_ranks_print_comes_to_standard_error(four: Remote, capfd: pytest.CaptureFixture[str]) -> None:
    """It was lost in a log file of Ray's on the node."""

    def loud(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if "RANK" in os.environ:  # the caller tries it too
            print("a word from a rank")
        return torch.nn.functional.cross_entropy(output, target)

    mh.fit(toy(loss=loud), "ddp", ranks=2, max_steps=2, progress=False, on=four)
    until = time.monotonic() + 60
    said = ""
    while "a word from a rank" not in said and time.monotonic() < until:
        four.agents.heard(0.1)  # type: ignore[union-attr]
        captured = capfd.readouterr()
        assert captured.out == ""
        said += captured.err
    assert "a word from a rank" in said


def test_modules_that_a_node_has_not_travel_by_value(
    four: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text(
        "import torch\ndef loss(output, target):\n    return torch.nn.functional.cross_entropy(output, target)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("only_here")
    (tmp_path / "only_here.py").unlink()
    run = mh.fit(toy(loss=module.loss), "ddp", ranks=2, max_steps=2, progress=False, on=four)
    assert run.status == "done"
    import cloudpickle

    assert "only_here" not in cloudpickle.list_registry_pickle_by_value()


def test_a_package_that_a_node_has_not_is_named(four: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is installed does not travel: it may be anything."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "installed_here.py").write_text(
        "import torch\nloss = torch.nn.CrossEntropyLoss\nclass Loss(loss): pass\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    module = importlib.import_module("installed_here")
    (folder / "installed_here.py").unlink()
    with pytest.raises(mh.RankFailed, match=r"No module named 'installed_here'") as failed:
        mh.fit(toy(loss=module.Loss()), "ddp", ranks=2, max_steps=2, progress=False, on=four)
    assert "\n" not in str(failed.value)


def test_a_node_without_manyhands_is_named() -> None:
    agents = RayAgents.__new__(RayAgents)
    agents.places = [NodePlace("n1", 2)]
    agents._problems = {
        0: RuntimeError("The actor failed to import.\nModuleNotFoundError: No module named 'manyhands'\n")
    }
    message = "manyhands is not installed on n1; every node needs manyhands and what the task imports"
    assert str(agents._not_started(0)) == message


def test_a_strategy_that_shares_memory_is_refused_over_two_nodes(four: Remote) -> None:
    with pytest.raises(mh.Refused, match=r"hogwild shares memory and cannot run over several hosts \(hosts: 2\)"):
        mh.fit(toy(), "hogwild", ranks=4, max_steps=2, progress=False, on=four)
