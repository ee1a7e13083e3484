"""Whether torch carries our shared-memory backend, found out by the caller before any rank counts on it.

A process group written in Python stands on names of torch that change. One rank alone, in the caller's process, takes a
millisecond and finds what is plainly gone; it is tried before every fit. A torch that is newer than tested gets a real
trial as well, once: two ranks, torch's own functions and DDP. Where either fails, ranks talk through gloo.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ...errors import BadInput
from ...model.torch_internals import Part, untested
from ..launch.processes import LaunchedProcess, launch
from ..rank import choose_transport, connect, disconnect, rank_of
from ..torchrun_variables import started_by_torchrun

TRIAL_SECONDS = 30.0


def transport_for(asked: str, devices: Sequence[torch.device], processes: int, hosts: int = 1) -> str:
    """What all ranks connect with: as asked, but gloo where they would take shared memory and it does not work.

    gloo as well where some ranks are on GPUs and others are not: all ranks of a world talk through one thing.
    """
    if processes == 1 and asked == "auto":
        return asked
    chosen = {choose_transport(asked, device, processes, hosts) for device in devices}
    if len(chosen) > 1:
        return "gloo"
    part = {"shm": SHARED_MEMORY, "hosts": BY_HOST}.get(chosen.pop())
    if part is None or not part.look():
        return asked
    if asked != "auto":
        raise BadInput(
            f"transport={asked} does not work with torch {torch.__version__} ({part.problem}); use transport=gloo"
        )
    return "gloo"


def _try() -> bool:
    _alone()
    if untested() and not started_by_torchrun():
        problem = _problem_of_two()
        if problem:
            raise RuntimeError(problem)
    return True


def _try_by_host() -> bool:
    """No gloo here: the caller may stand where it finds no network, which the ranks have."""
    for name in ("_register_backend", "_set_default_backend"):
        getattr(dist.ProcessGroup, name)
    getattr(dist, "ProcessGroupGloo")  # noqa: B009
    return _try()


def _alone() -> None:
    """One rank in this process: what is missing altogether shows here."""
    from .backend import SharedMemoryGroup

    group = SharedMemoryGroup(dist.HashStore(), 0, 1, timedelta(seconds=TRIAL_SECONDS))
    try:
        numbers = torch.ones(3, device="cpu")
        group.allreduce([numbers]).wait()
        group.broadcast([numbers], dist.BroadcastOptions()).get_future().wait()
        group.barrier().wait()
        if numbers.tolist() != [1.0, 1.0, 1.0]:
            raise RuntimeError(f"a sum over one rank became {numbers.tolist()}")
    finally:
        group.shutdown()


@lru_cache(maxsize=1)
def _problem_of_two() -> str:
    """What goes wrong between two real ranks, or nothing."""
    try:
        launch(take_part, 2, time_limit=TRIAL_SECONDS)
    except Exception as problem:
        return str(problem)
    return ""


def take_part(process: LaunchedProcess) -> None:
    """One of two ranks: what the strategies ask of a group, each once."""
    rank, store = rank_of(process, torch.device("cpu"))
    connect(rank, "shm", store, TRIAL_SECONDS)
    try:
        rank.barrier()
        if rank.agree("heard") != "heard" or rank.gather(rank.index) not in ([0, 1], None):
            raise RuntimeError("small things by value came out wrong")
        _exchange(rank.index)
        _train(rank.index)
    finally:
        disconnect(rank)


def _exchange(index: int) -> None:
    """Every collective and message that strategies use, on numbers that are easy to check."""
    gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # renamed in torch 2.13
    scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    own, both, half, message = torch.full((2,), index + 1.0), torch.zeros(4), torch.zeros(2), torch.zeros(1)
    gather(both, own)
    scatter(half, both)
    dist.all_reduce(own)
    dist.broadcast(both, src=1)
    if index == 0:
        dist.send(torch.full((1,), 7.0), 1)
        dist.recv(message, 1)
    else:
        dist.recv(message, 0)
        dist.send(message, 0)
    found = [*own.tolist(), *both.tolist(), *half.tolist(), *message.tolist()]
    expected = [3, 3, 1, 1, 2, 2, *[2 * (index + 1)] * 2, 7]
    if found != expected:
        raise RuntimeError(f"collectives gave {found} instead of {expected}")


def _train(index: int) -> None:
    """DDP in C++ calls the group from its own threads."""
    layer = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        layer.weight.fill_(index + 1.0)  # DDP must bring rank 0's weight
    model = nn.parallel.DistributedDataParallel(layer)
    for _ in range(2):  # the second with buckets cut anew
        layer.zero_grad()
        model(torch.full((1, 1), index + 1.0)).sum().backward()
    if layer.weight.item() != 1.0 or layer.weight.grad is None or layer.weight.grad.item() != 1.5:
        raise RuntimeError("DDP did not sum its gradients")


SHARED_MEMORY = Part("what shared memory between ranks stands on", "ranks talk through gloo", _try)
BY_HOST = Part("what sums by host stand on", "ranks talk through gloo", _try_by_host)
