"""One of torchrun's ranks: this process is a rank itself, and torchrun starts all of them again after a failure."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import psutil
import torch
import torch.distributed as dist

from ...errors import BadInput, ManyhandsError
from ..health.heartbeats import Board
from ..health.torchrun_stalls import TorchrunWatch
from ..launch.rank_process import describe
from ..rank import COLLECTIVE_SECONDS, Rank, connect, disconnect, share_board, share_over_store, torchrun_world
from .engine import Ask, Body, Engine, Forgive, Ready, Shared, T, Tell, World


class Torchrun(Engine):
    may_restart = False

    def __init__(self) -> None:
        self.index, self.processes, self.hosts = torchrun_world()
        self.leads = self.index == 0
        self.restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        self.began = psutil.Process(os.getppid()).create_time()

    def check(self, processes: int, name: str, survives: bool) -> None:
        if survives:
            raise BadInput("torchrun ends all ranks when one dies, so on_death=continue fails; see its --max-restarts")
        if processes != self.processes:
            raise BadInput(
                f"torchrun started {self.processes} processes but {name} needs {processes}; "
                f"use --ranks {self.processes} or --nproc-per-node {processes}"
            )

    def ranks_here(self, ranks: int) -> int:
        return int(os.environ.get("LOCAL_WORLD_SIZE", self.processes))

    @contextmanager
    def joined(self, world: World, tell: Tell, ask: Ask) -> Iterator[None]:
        threads = torch.get_num_threads()
        torch.set_num_threads(world.threads)
        rank = self.rank = self._rank(world, tell, ask)
        own_group = not dist.is_initialized()
        try:
            if own_group:
                connect(rank, world.transport, None, COLLECTIVE_SECONDS)
            if self.hosts == 1:
                share_board(rank)
            watched = self.hosts == 1 and self.processes > 1
            with TorchrunWatch(rank, world.stall_seconds) if watched else nullcontext():
                yield
        except ManyhandsError:
            raise
        except Exception as problem:
            raise describe(problem, self.index, rank.board) from problem
        finally:
            if own_group:
                disconnect(rank)
            torch.set_num_threads(threads)

    def _rank(self, world: World, tell: Tell, ask: Ask) -> Rank:
        local = int(os.environ.get("LOCAL_RANK", self.index))
        device = world.devices[local if self.hosts > 1 else self.index]
        if device.type == "cuda":
            torch.cuda.set_device(device)
        board = Board(world.processes, ranks=world.ranks)
        rank = Rank(self.index, world.processes, world.ranks, device, board, world.threads, tell, ask, None, self.hosts)
        rank.devices = world.devices
        return rank

    def once(self, make: Callable[[], T]) -> T:
        """Made by rank 0 alone, for all: only its host need have the files, and what is measured is measured once."""
        made: T | BadInput | None = None
        if self.leads:
            try:
                made = make()
            except BadInput as refusal:
                made = refusal
        found: T | BadInput = self.rank.agree(made)
        if isinstance(found, BadInput):
            raise found
        return found

    def run(self, body: Body, shared: Shared, ready: Ready, forgive: Forgive, time_limit: float | None) -> Any:
        if shared is not None:
            self.rank.shared = share_over_store(self.rank, shared)
        self.once(ready)
        return body(self.rank)
