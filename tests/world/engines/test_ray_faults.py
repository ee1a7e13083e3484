"""Nodes of a Ray cluster that go in the middle of a fit, and come back; GPUs that exist in Ray's books alone."""

from __future__ import annotations

import os
import re
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import manyhands as mh
from manyhands.world.engines.choose import opened
from manyhands.world.engines.engine import World
from tests.breakable import toy
from tests.conftest import distance, fork_servers, outlive
from tests.ray_cluster import ray_nodes

CPU = torch.device("cpu")


def fit_beside(cluster: Any, folder: Path, events: list[tuple[int, Any]], **keywords: Any) -> dict[str, Any]:
    """A fit in a thread; each event is called here once the checkpoint of its step is there. Ray adds nodes from the
    main thread alone."""
    out: dict[str, Any] = {}

    def fit() -> None:
        try:
            out["run"] = mh.fit(
                toy(samples=4000),
                "ddp",
                max_steps=200,
                checkpoint_every=10,
                run_dir=folder,
                progress=False,
                on=mh.Ray(cluster.address),
                on_step=lambda _: time.sleep(0.03),
                **keywords,
            )
        except mh.RankFailed as failure:
            out["failure"] = failure

    thread = threading.Thread(target=fit)
    thread.start()
    for step, event in events:
        while thread.is_alive() and not any(_step(path) >= step for path in folder.glob("checkpoints/step-*")):
            time.sleep(0.02)
        event()
    thread.join()
    return out


def _step(path: Path) -> int:
    return int(path.name[5:]) if path.name[5:].isdecimal() else 0


def unbroken(ranks: int) -> mh.Run:
    return mh.fit(toy(samples=4000), "ddp", ranks=ranks, max_steps=200, progress=False)


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("graceful", [True, False])
def test_a_lost_node_ends_the_run_in_one_line_that_names_it(tmp_path: Path, graceful: bool) -> None:
    with ray_nodes({"num_cpus": 1}, {"num_cpus": 1}) as made:
        (node,) = made.worker_nodes
        started: list[psutil.Process] = []

        def remove() -> None:
            started.extend(below_agents())
            made.remove_node(node, allow_graceful=graceful)

        failure = fit_beside(made, tmp_path, [(20, remove)], ranks=2)["failure"]
        assert re.match(r"host \S+ is lost \((its Ray node has died|Ray cannot reach it)", str(failure))
        assert "\n" not in str(failure)
        assert failure.host in str(failure)
        assert failure.detected_seconds < 20
        assert len(started) >= 6  # on each node a fork server, a keeper and a rank
        assert outlive(started) == []


def below_agents() -> list[psutil.Process]:
    """What the agents of this program's cluster have started."""
    return [
        process
        for process in psutil.Process().children(recursive=True)
        if "fork_server_process" in " ".join(process.cmdline()) and process not in fork_servers()
    ]


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_run_goes_on_with_fewer_ranks_and_with_more_when_a_node_comes_back(tmp_path: Path) -> None:
    with ray_nodes({"num_cpus": 1}, {"num_cpus": 1}) as made:
        (node,) = made.worker_nodes
        events = [(20, lambda: made.remove_node(node)), (40, lambda: made.add_node(num_cpus=1))]
        run = fit_beside(made, tmp_path, events, ranks=2, max_restarts=1)["run"]
    assert [(fault["kind"], fault.get("from"), fault.get("to")) for fault in run.faults] == [
        ("died", None, None),
        ("ranks changed", 2, 1),
        ("ranks changed", 1, 2),
    ]
    assert (run.restarts, run.ranks, len(run.losses)) == (1, 2, 200)
    assert distance(run, unbroken(2)) < 1e-5


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_as_many_ranks_elsewhere_train_the_same_weights_to_the_bit(tmp_path: Path) -> None:
    with ray_nodes({"num_cpus": 1}, {"num_cpus": 2}, {"num_cpus": 2}) as made:
        by_name = {node.node_id if hasattr(node, "node_id") else node.unique_id: node for node in made.worker_nodes}

        def remove_the_one_in_use() -> None:
            import ray

            free = ray._private.state.available_resources_per_node()
            made.remove_node(next(node for name, node in by_name.items() if not free[name].get("CPU")))

        run = fit_beside(made, tmp_path, [(20, remove_the_one_in_use)], ranks=2, max_restarts=1)["run"]
    assert [fault["kind"] for fault in run.faults] == ["died"]
    assert run.weights_sha256 == unbroken(2).weights_sha256


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_every_rank_sees_the_gpus_of_all_ranks_of_its_node() -> None:
    """The GPUs are Ray's word alone: this machine need not have any."""
    with (
        ray_nodes({"num_cpus": 2, "num_gpus": 2}) as cluster,
        opened(mh.Ray(cluster.address, gpus_per_rank=1)) as engine,
    ):
        engine.check(2, "", False)
        engine.joined(World(2, 2, [CPU, CPU], 1), lambda *_: None, lambda *_: None)
        seen = engine.run(lambda rank: os.environ["CUDA_VISIBLE_DEVICES"], None, lambda: None, None, None)  # type: ignore[arg-type]
    assert seen == "0,1"
