"""What torchrun says in the environment of the processes that it starts. Known without torch."""

from __future__ import annotations

import os


def started_by_torchrun() -> bool:
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def torchrun_world() -> tuple[int, int, int]:
    """(rank, world size, hosts) as torchrun says."""
    world = int(os.environ["WORLD_SIZE"])
    local = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    hosts = os.environ.get("GROUP_WORLD_SIZE", -(-world // local))  # hosts may have different numbers of ranks
    return int(os.environ["RANK"]), world, max(1, int(hosts))
