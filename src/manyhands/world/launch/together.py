"""together(): run a function on several processes that can talk, and get back what each returned."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from ..rank import connect, rank_of
from ..shm.trial import transport_for
from .processes import LaunchedProcess, launch


def together(
    function: Callable[[int], Any], ranks: int = 2, *, transport: str = "auto", time_limit: float | None = None
) -> list[Any]:
    """Run `function(rank)` on `ranks` processes of this host with torch.distributed ready; returns all results.

    It works from scripts, notebooks and the REPL, with functions defined anywhere. The first failure ends all.
    """
    transport = transport_for(transport, [torch.device("cpu")], ranks)
    return launch(partial(_take_part, function=function, transport=transport), ranks, time_limit=time_limit)


def _take_part(process: LaunchedProcess, function: Callable[[int], Any], transport: str) -> Any:
    rank, store = rank_of(process, torch.device("cpu"))
    connect(rank, transport, store, 600)
    if dist.is_initialized():
        dist.barrier()  # one that ends at once would take the store along while others still connect through it
    try:
        return function(rank.index)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
