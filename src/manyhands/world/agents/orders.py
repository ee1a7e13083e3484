"""What the caller asks of an agent for one launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class LaunchOrders:
    """`body` and what it runs among; see `launch` and `Part`."""

    body: Any  # as `Agents.carry` returned it
    processes: int  # that start on this host
    ranks: int  # of them all, those that train
    first: int = 0  # the first of them on this host
    of: int = 0  # how many there are on all hosts
    address: str = "127.0.0.1"  # of this host
    store: tuple[str, int] | None = None  # where they meet, if there are several hosts
    threads: int = 1
    shared: Mapping[str, Tensor] | None = None
    preload: tuple[str, ...] = ()
    environment: Mapping[str, str] | None = None  # of the caller; what this host has set itself counts more
    folder: str = "."  # where the caller stands,
    path: tuple[str, ...] = ()  # where it looks for modules,
    arithmetic: Mapping[str, Any] | None = None  # how it has set torch's,
    without: tuple[str, ...] = ()  # and what of torch it does without
