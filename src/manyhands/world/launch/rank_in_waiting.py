"""A rank in waiting: forked before it is asked for, with its GPU begun while the caller still reads its data.

A process waits half a second for its first step on a GPU: for the context, torch's libraries and their kernels. That is
the same whatever is trained, so it need not wait for the task.

    server ── socket ──> keeper in waiting ── socket ──> rank in waiting: begins the GPU, then waits
       │                                                      │
       ├─ a launch of one rank: its descriptors go to both, and they are its keeper and its rank
       └─ any other launch, the caller's end, too long a wait: the socket closes, and both end
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket

from .fork_server_process import DESCRIPTORS, FOR_RANKS, RankProcess, fork_ranks, keep, leave, when_parent_ends

LONGEST = 60.0  # seconds; whoever prepares a job that long does not notice half a second


class WaitingRoom:
    """The server's end: for one rank in waiting, or none."""

    def __init__(self, rank_process: RankProcess, requests: socket.socket):
        self._rank_process, self._requests = rank_process, requests
        self._device: str | None = None
        self._calls: socket.socket | None = None

    def prepare(self, device: str | None, stale: bool) -> None:
        """Have a rank wait on this device; one that is `stale`, for it lacks what was imported since, makes room for another."""
        device = device or self._device
        if device is None or (device == self._device and not stale):
            return
        self.empty()
        self._device = device
        self._calls, theirs = socket.socketpair()
        server = os.getpid()
        if os.fork() == 0:
            self._calls.close()
            self._requests.close()
            when_parent_ends(signal.SIGKILL, server)
            leave(lambda: _keeper(theirs, device, self._rank_process))
        theirs.close()

    def empty_after_long(self) -> None:
        """Return when there is a request, having sent a rank away that has waited for one too long."""
        if self._calls is not None and not select.select([self._requests], [], [], LONGEST)[0]:
            self.empty()

    def take(self, fds: list[int], fits: bool) -> bool:
        """Give the rank in waiting a launch that it fits; the room is empty then. False where there was none."""
        taken = False
        if self._calls is not None and fits and len(fds) == len(DESCRIPTORS) + 1:
            with contextlib.suppress(OSError):  # it is dead
                socket.send_fds(self._calls, [b"launch"], fds)
                taken = True
        self.empty()
        return taken

    def empty(self) -> None:
        if self._calls is not None:
            self._calls.close()
        self._calls = self._device = None


def _keeper(calls: socket.socket, device: str, rank_process: RankProcess) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # the server's own forgets who has ended
    signal.set_wakeup_fd(-1)
    line, theirs = socket.socketpair()
    keeper = os.getpid()
    rank = os.fork()
    if rank == 0:
        line.close()
        calls.close()
        when_parent_ends(signal.SIGKILL, keeper)
        os.setpgid(0, 0)
        leave(lambda: _rank(theirs, device, rank_process))
    theirs.close()
    _, fds, _, _ = socket.recv_fds(calls, 16, 32)
    calls.close()
    if not fds:  # nobody needs it; the rank is killed as this process ends
        return

    def hand_over(named: dict[str, int], links: list[int], control: int) -> dict[int, int]:
        with contextlib.suppress(OSError):
            ended, _ = os.waitpid(rank, os.WNOHANG)
            if not ended:
                socket.send_fds(line, [b"launch"], [2, links[0], *(named[name] for name in FOR_RANKS)])
                return {rank: 0}
        return fork_ranks(rank_process)(named, links, control)

    keep(fds, hand_over)


def _rank(calls: socket.socket, device: str, rank_process: RankProcess) -> None:
    with contextlib.suppress(Exception):  # what is wrong with the device, the launch will say
        begin(device)
    _, fds, _, _ = socket.recv_fds(calls, 16, 32)
    calls.close()
    if fds:
        stderr, link, *named = fds
        os.dup2(stderr, 1)
        os.dup2(stderr, 2)
        os.close(stderr)
        rank_process(0, link, dict(zip(FOR_RANKS, named, strict=True)))


def begin(device: str) -> None:
    """A small net's step on the device, if that is a GPU: what every first step there waits for.

    It draws no random numbers, and leaves nothing but what the libraries keep.
    """
    import torch
    import torch.nn.functional as F

    place = torch.device("cuda" if device == "auto" else device)
    if place.type != "cuda" or not torch.cuda.is_available():
        return
    with torch.cuda.device(place):
        kernels = torch.zeros(4, 1, 3, 3, device=place, requires_grad=True)
        weight = torch.zeros(4, 16, device=place, requires_grad=True)
        seen = F.max_pool2d(F.relu(F.conv2d(torch.zeros(2, 1, 6, 6, device=place), kernels)), 2)
        F.cross_entropy(F.linear(seen.flatten(1), weight), torch.zeros(2, dtype=torch.int64, device=place)).backward()
        torch.optim.SGD([kernels, weight], lr=0.0, momentum=0.9, fused=True).step()
        torch.cuda.synchronize()
        del kernels, weight, seen
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
