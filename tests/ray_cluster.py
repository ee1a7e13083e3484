"""A Ray cluster of several nodes on this machine, for tests."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from manyhands.world.engines import ray_connection
from tests.conftest import ROOT


@contextmanager
def ray_nodes(*nodes: dict[str, Any], **head: Any) -> Iterator[Any]:
    """The first of the nodes is the head. Skips where Ray is missing."""
    pytest.importorskip("ray", reason="ray is not installed")
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")  # Ray's own
        paths = [str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))  # nodes import what the tests do
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setattr(ray_connection, "ANSWER_SECONDS", 60.0)
        from ray.cluster_utils import Cluster

        cluster = Cluster(
            initialize_head=True, head_node_args={"include_dashboard": False, **nodes[0], **head}, shutdown_at_exit=True
        )
        try:
            for node in nodes[1:]:
                cluster.add_node(**node)
            yield cluster
        finally:
            cluster.shutdown()
