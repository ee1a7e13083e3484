"""Ranks of our own: processes of this host, which the fork server starts."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from ..health.stalls import StallFinder
from ..health.survivors import Exchange, SurvivingRank
from ..launch.processes import LaunchedProcess, launch
from ..rank import COLLECTIVE_SECONDS, Rank, connect, disconnect, rank_of
from .engine import Body, Engine, Forgive, Ready, Shared, World


class Local(Engine):
    """Has nothing to refuse early: a launch refuses more processes than there are descriptors for."""

    def run(self, body: Body, shared: Shared, ready: Ready, forgive: Forgive, time_limit: float | None) -> Any:
        world, exchange = self.world, Exchange(self.ask)
        results = launch(
            partial(on_rank, body=body, world=world),
            world.processes,
            ranks=world.ranks,
            threads=world.threads,
            shared=shared,
            preload=world.preload,
            on_tell=lambda _, kind, content: self.tell(kind, content),
            on_ask=exchange,
            watch=StallFinder(world.stall_seconds),
            forgive=forgive if world.survives else None,
            time_limit=time_limit,
            ready=ready,
        )
        return exchange.outcome or next((result for result in results if result is not None), None)


def on_rank(process: LaunchedProcess, body: Body, world: World, by_host: list[list[int]] | None = None) -> Any:
    """What every launched process runs, on this host or among those of several."""
    device = world.devices[process.index]
    if device.type == "cuda":
        torch.cuda.set_device(device)
    rank, store = rank_of(process, device, SurvivingRank if world.survives else Rank, by_host)
    rank.devices = world.devices
    connect(rank, world.transport, store, COLLECTIVE_SECONDS)
    try:
        return body(rank)
    finally:
        disconnect(rank)
