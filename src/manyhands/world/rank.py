"""Rank: who I am and how I talk. Every transfer is timed and counted here."""

from __future__ import annotations

import os
import pickle
import socket
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from time import monotonic_ns
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import BadInput
from ..record.clock import Clock
from ..record.cuda_clock import CudaClock
from .health.heartbeats import ARRIVALS, ARRIVED, DONE, PHASE_NUMBERS, PID, Board
from .launch.processes import LaunchedProcess
from .launch.rendezvous import meet, meet_over_hosts
from .shared_memory import Slot, attach_tensors, open_of_process, share_tensors

TRANSPORTS = ("auto", "gloo", "nccl", "shm", "hosts")
BACKENDS = {"gloo": "gloo", "nccl": "cpu:gloo,cuda:nccl", "shm": "manyhands_shm", "hosts": "manyhands_hosts"}
COLLECTIVE_SECONDS = 600.0  # no wait inside a collective is longer; dead and stalled ranks are noticed much sooner


class Rank:
    """One process of a fit: its number, its device, its clock and its lines to the others."""

    def __init__(
        self,
        index: int,
        processes: int,
        ranks: int,
        device: torch.device,
        board: Board,
        threads: int,
        tell: Callable[[str, Any], None],
        ask: Callable[[str, Any], Any],
        shared: Mapping[str, Tensor] | None = None,
        by_host: list[list[int]] | None = None,
    ):
        self.index, self.processes, self.ranks, self.device = index, processes, ranks, device
        self.devices = [device]  # of all ranks, where one process holds several (threads)
        self.threads, self.tell, self.ask = threads, tell, ask
        self.shared = dict(shared) if shared is not None else None
        self.by_host = by_host or [list(range(processes))]  # the processes of each host
        self.hosts = len(self.by_host)
        self.host = board.host or os.environ.get("MANYHANDS_HOST") or socket.gethostname()  # as an agent calls it
        self.clock: Clock = CudaClock(device) if device.type == "cuda" else Clock()
        self.transport: str | None = None
        self._meeting = 0
        self.use_board(board)

    def use_board(self, board: Board) -> None:
        """Write heartbeats here from now on."""
        self.board = board
        self._row = board.row(self.index)
        self._row[PID] = os.getpid()
        self._rows = [board.row(other) for other in range(self.processes)]
        self.clock.beat_on(self._row)

    @property
    def leads(self) -> bool:
        """The one rank that evaluates, writes checkpoints and gives the outcome."""
        return self.index == 0

    @property
    def serves(self) -> bool:
        """A process that serves the ranks and does not train."""
        return self.index >= self.ranks

    # ------------------------------------------------------------ meeting the others

    def arrive(self) -> int:
        """Note the time of arrival at a synchronisation point; hand the result to `waited`."""
        meeting = self._meeting
        self._meeting = meeting + 1
        self._row[ARRIVED + meeting % ARRIVALS] = monotonic_ns()
        return meeting

    def waited(self, meeting: int, limit: int) -> int:
        """Nanoseconds this rank waited for the last to arrive, at most `limit`; call it after the collective.

        Only ranks of one host share a clock and a board; over hosts the wait stays part of the communication.
        """
        if self.hosts > 1:
            return 0
        cell = ARRIVED + meeting % ARRIVALS
        times = [row[cell] for row in self._rows[: self.ranks]]
        own = times[self.index]
        latest = max(times)
        if own == latest and len(times) > 1:
            self.clock.late += (own * (len(times) - 1) - (sum(times) - own)) // (len(times) - 1)
        return min(limit, latest - own)

    def barrier(self) -> None:
        """Wait until every process is here."""
        if self.processes > 1 and dist.is_initialized():
            dist.barrier()

    def say(self, state: str) -> None:
        """Tell the watchers what this process does between steps."""
        self.clock.say(PHASE_NUMBERS[state])

    def done(self) -> None:
        self._row[DONE] = 1
        self.say("end")

    # ------------------------------------------------------------ small things by value

    def gather(self, value: Any) -> list[Any] | None:
        """Everybody's value, on rank 0."""
        if self.processes == 1 or not dist.is_initialized():
            return [value]
        values: list[Any] | None = [None] * self.processes if self.index == 0 else None
        dist.gather_object(value, values, dst=0)
        return values

    def agree(self, value: Any) -> Any:
        """Rank 0's value, everywhere."""
        if self.processes == 1 or not dist.is_initialized():
            return value
        values = [cloudpickle.dumps(value) if self.index == 0 else None]
        dist.broadcast_object_list(values, src=0)
        return pickle.loads(values[0])  # type: ignore[arg-type]  # noqa: S301 (from rank 0 of this run)

    def deliver(self, outcome: Any) -> bool:
        """Whether the outcome is in good hands: a process returns it to its caller as its result."""
        return True

    # ------------------------------------------------------------ tensors, timed and counted

    def all_reduce(self, tensor: Tensor, group: dist.ProcessGroup | None = None) -> None:
        """Sum over the ranks of a group, in place; waiting for the last rank is booked as waiting."""
        if self.processes == 1:
            return
        meeting = self.arrive() if group is None else None
        began = monotonic_ns()
        with self.clock.during("communication"):
            dist.all_reduce(tensor, group=group)
            self.clock.count(tensor.numel() * tensor.element_size())
            if meeting is not None:
                self.split_wait(meeting, began)

    def split_wait(self, meeting: int, began: int) -> None:
        """After a collective that began at `began`: book waiting for the last rank apart from the rest."""
        waited = self.waited(meeting, monotonic_ns() - began)
        self.clock.since("wait", began)
        self.clock.since("communication", began + waited)


# ---------------------------------------------------------------- forming the world


def choose_transport(asked: str, device: torch.device, processes: int, hosts: int) -> str:
    """What carries tensors between ranks: NCCL where every rank has a GPU of its own, else shared memory or gloo.

    Over hosts it is both: shared memory inside each, gloo between them (between_hosts.py).
    """
    if asked not in TRANSPORTS:
        raise BadInput(f'no transport named "{asked}"; there are: {", ".join(TRANSPORTS)}')
    if asked == "shm" and hosts > 1:
        raise BadInput(f"transport=shm works within one host (hosts: {hosts}); use transport=hosts")
    if asked == "hosts" and hosts == 1:
        return "shm"
    if asked != "auto":
        return asked
    if device.type == "cuda" and processes <= torch.cuda.device_count():
        return "nccl"
    if device.type != "cpu" or processes == hosts > 1:  # one process on each: nobody to share memory with
        return "gloo"
    return "shm" if hosts == 1 else "hosts"


def connect(rank: Rank, asked: str, store: dist.Store | None, timeout: float) -> None:
    """Make the process group of this world; a lone process has one only where a transport is asked for by name."""
    if rank.processes == 1 and asked == "auto":
        return
    transport = choose_transport(asked, rank.device, rank.processes, rank.hosts)
    options: dict[str, Any] = {"timeout": timedelta(seconds=timeout)}
    if transport in ("shm", "hosts"):  # importing them registers the backends
        from . import between_hosts

        options["pg_options"] = between_hosts.Options(rank.by_host) if transport == "hosts" else None
    backend = BACKENDS[transport]
    if rank.processes == 1:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, **options)
    elif store is None:
        dist.init_process_group(backend, **options)  # torchrun's environment says where to meet
    else:
        dist.init_process_group(backend, store=store, rank=rank.index, world_size=rank.processes, **options)
    rank.transport = transport


def disconnect(rank: Rank) -> None:
    if rank.transport is not None and dist.is_initialized():
        dist.destroy_process_group()


def rank_of(
    process: LaunchedProcess,
    device: torch.device,
    kind: type[Rank] = Rank,
    by_host: list[list[int]] | None = None,
) -> tuple[Rank, dist.Store | None]:
    """A rank of our own launch. On one host everything stays on loopback."""
    counts, caller = (process.index, process.processes, process.ranks), process.caller
    rank = kind(*counts, device, process.board, process.threads, caller.tell, caller.ask, process.shared, by_host)
    if process.processes == 1:
        return rank, None
    if rank.hosts > 1:
        assert process.store is not None
        return rank, meet_over_hosts(*process.store)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
    return rank, meet(process.meeting, process.port, process.index, process.processes)


def share_over_store(rank: Rank, tensors: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
    """Shared tensors for ranks of one host that have no common parent: rank 0 makes them, the others attach."""
    fd: int | None = None
    slots: dict[str, Slot] | None = None
    if rank.index == 0:
        assert tensors is not None
        fd, slots = share_tensors(tensors)
    pid, number, slots = rank.agree((os.getpid(), fd, slots))
    mine = fd if fd is not None else open_of_process(pid, number)
    attached = attach_tensors(mine, slots)
    rank.barrier()
    os.close(mine)
    return attached
