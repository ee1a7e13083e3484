"""Ranks for the tests of world/shm/backend.py: processes that stay alive and do one job after the other."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist

from manyhands.world.shm import backend as shm

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["torch", "torch._dynamo", "torch.distributed.fsdp", "cloudpickle", "manyhands.world.between_hosts"]
)
MOST_RANKS = 6
TIMEOUT = timedelta(seconds=60)


def serve(rank: int, pipe: Any) -> None:
    """A rank: each job is a function, run in a process group of its own."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo" if sys.platform == "linux" else "lo0"
    while True:
        function, arguments, group = cloudpickle.loads(pipe.recv_bytes())
        group["store"] = dist.FileStore(group["store"], group["world_size"])
        try:
            dist.init_process_group(rank=rank, **group)
            try:
                answer = (True, function(rank, *arguments))
            finally:
                dist.destroy_process_group()
        except Exception as error:
            answer = (False, (error, traceback.format_exc()))
        pipe.send_bytes(cloudpickle.dumps(answer))


class Crew:
    """So many ranks as the largest job needed so far."""

    def __init__(self) -> None:
        self.pipes: list[Any] = []
        self.processes: list[Any] = []

    def start(
        self,
        function: Callable[..., Any],
        ranks: int,
        *arguments: Any,
        backend: str = shm.NAME,
        options: Any = None,
        timeout: timedelta = TIMEOUT,
    ) -> None:
        """Have `function(rank, *arguments)` called on every rank."""
        for rank in range(len(self.processes), ranks):
            here, there = CONTEXT.Pipe()
            self.processes.append(CONTEXT.Process(target=serve, args=(rank, there), daemon=True))
            self.processes[-1].start()
            there.close()
            self.pipes.append(here)
        # By value: ranks need not import the tests' own imports.
        cloudpickle.register_pickle_by_value(sys.modules[function.__module__])
        store = tempfile.mktemp(prefix="manyhands-test-")
        group = {"backend": backend, "store": store, "world_size": ranks, "timeout": timeout, "pg_options": options}
        for pipe in self.pipes[:ranks]:
            pipe.send_bytes(cloudpickle.dumps((function, arguments, group)))

    def answer(self, rank: int, seconds: float = 60) -> tuple[bool, Any]:
        """(True, what the function returned) or (False, (its error, the traceback))."""
        if not self.pipes[rank].poll(seconds):
            raise TimeoutError(f"rank {rank} did not answer in {seconds} s")
        return cloudpickle.loads(self.pipes[rank].recv_bytes())

    def run(self, function: Callable[..., Any], ranks: int, *arguments: Any, **keywords: Any) -> list[Any]:
        """What the function returned on each rank; raises the first rank's error."""
        self.start(function, ranks, *arguments, **keywords)
        answers = [self.answer(rank) for rank in range(ranks)]
        for fine, result in answers:
            if not fine:
                raise result[0] from RuntimeError(result[1])
        return [result for _, result in answers]

    def close(self) -> None:
        for process in self.processes:
            process.kill()
        for process, pipe in zip(self.processes, self.pipes, strict=True):
            process.join()
            pipe.close()
        self.processes, self.pipes = [], []


# torch renamed these two.
gather_into = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
scatter_from = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def shared_files() -> set[str]:
    """What this package has left in /dev/shm."""
    return {name for name in os.listdir("/dev/shm") if "manyhands" in name} if os.path.isdir("/dev/shm") else set()
