"""`manyhands_hosts`: a torch.distributed backend for ranks on several hosts: shared memory inside each, gloo between them.

    host A   rank 0 <-+ sum             rank 0 <----- sum over gloo -----> rank 2             + sum-> rank 2   host B
             rank 1 --+ (shared memory)    |                                  |  (shared memory) +--- rank 3
             rank 1 <----------------------+                                  +---------------------> rank 3

all_reduce takes three steps: the ranks of a host sum in shared memory, in rank order; the first rank of every host (its
leader) sums with the other leaders over the network; what they hold then goes back through shared memory. All ranks end
with the same bits, the same in every run. A message between two ranks of one host goes through shared memory if it has a
tag: one without may be received from whoever comes first, and nobody can wait in memory and at gloo at once. Everything
else is gloo's among all ranks.

    n bytes, N ranks on H hosts        over the network, from each host       flat ring (gloo alone)
    all_reduce                         2 n (H-1)/H                            2 n (N-1)/N

So two hosts send n bytes each where a flat ring over 2 x 2 ranks sends 1.5 n, and only one rank of a host waits for it.

Within a host a dead rank is named at once; a leader that hears no more of another host ends with `PeerMissing`, which its
own host's ranks then notice.
"""

# torch's stubs give these methods overloads (a bare tensor, a timeout) that torch itself never calls on a Python group.
# mypy: disable-error-code="override, assignment"

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import BadInput, PeerMissing
from .shm.backend import SharedMemoryGroup
from .shm.reductions import AVG, SUM, reduction
from .shm.tensors import flatten, in_turn, returning
from .shm.work import Steps, Work

NAME = "manyhands_hosts"
LEADER = 0  # of a host's ranks
REDUCED_BY_GLOO = {torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.int8}
REDUCED_BY_GLOO |= {torch.uint8, torch.bool}


@dataclass(frozen=True)
class Options:
    """`init_process_group(..., pg_options=Options(by_host=[[0, 1], [2, 3]]))`: the ranks of every host."""

    by_host: Sequence[Sequence[int]] = field(default_factory=list)


class HostsGroup(dist.ProcessGroup):
    """What torch.distributed calls. What is not written here is passed on to gloo, see the end of this file."""

    by_host: Sequence[Sequence[int]] = ()  # of the whole world: groups made later are cut by it

    def __init__(
        self,
        store: Any,  # a torch.distributed.Store
        rank: int,
        timeout: timedelta,
        hosts: Sequence[Sequence[int]],  # ranks of this group
        global_ranks: Sequence[int],
    ):
        size = len(global_ranks)
        super().__init__(rank, size)  # type: ignore[call-arg]  # torch has this form, its stubs do not
        number, here = next((number, host) for number, host in enumerate(hosts) if rank in host)
        self._size = size
        self._places = {other: place for place, other in enumerate(here)}

        def gloo(name: str, rank: int, size: int) -> Any:
            return dist.ProcessGroupGloo(dist.PrefixStore(f"{name}/", store), rank, size, timeout)

        self._inside = SharedMemoryGroup(
            dist.PrefixStore(f"host {number}/", store),
            self._places[rank],
            len(here),
            timeout,
            global_ranks=[global_ranks[other] for other in here],
        )
        self._leaders = gloo("leaders", number, len(hosts)) if self._places[rank] == LEADER else None
        # A group of torch's own around gloo: it knows every name that this torch has for an operation.
        self.flat = dist.ProcessGroup(store, rank, size)
        everyone = gloo("all", rank, size)
        for group in (self.flat, self):
            group._register_backend(torch.device("cpu"), self.BackendType.GLOO, everyone)
            group._set_default_backend(self.BackendType.GLOO)

    def name(self) -> str:
        return NAME

    getBackendName = _get_backend_name = name

    # -- sums --------------------------------------------------------------------------------------------------------

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> Any:
        [tensor] = tensors
        if tensor.is_sparse:
            return self.flat.allreduce(tensors, opts)
        return self.allreduce_coalesced(tensors, opts)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> Work:
        operations = [reduction(opts, tensor.dtype) for tensor in tensors]
        if unknown := {tensor.dtype for tensor in tensors} - REDUCED_BY_GLOO:
            raise BadInput(f"transport=hosts cannot reduce {unknown.pop()}, which gloo does not know")
        flats, strided = flatten(tensors)
        steps = in_turn(map(self._all_reduce, flats, operations))
        nbytes = sum(flat.nbytes for flat in flats)
        return self._inside.start("all_reduce", returning(steps, strided), tensors, opts, nbytes)

    def _all_reduce(self, data: Tensor, operation: int) -> Steps:
        inside = self._inside.collectives
        alone = len(self._places) == 1
        by_sum = SUM if operation == AVG else operation
        if not alone:
            yield from inside.all_reduce(data, by_sum, LEADER)
        if self._leaders is not None:
            yield from self._among_leaders(data, by_sum)
        if not alone:
            yield from inside.broadcast(data, LEADER)
        if operation == AVG:
            data.div_(self._size)

    def _among_leaders(self, data: Tensor, operation: int) -> Steps:
        assert self._leaders is not None
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp(dist.ReduceOp.RedOpType(operation))
        try:
            work = self._leaders.allreduce([data], options)
            while not work.is_completed():
                yield LEADER
            work.wait()
        except RuntimeError as problem:
            raise PeerMissing(
                f"another host did not take part in all_reduce: {str(problem).splitlines()[0]}"
            ) from problem

    # -- messages ----------------------------------------------------------------------------------------------------

    def send(self, tensors: list[Tensor], target: int, tag: int = 0) -> Any:
        if tag and target in self._places:
            return self._inside.send(tensors, self._places[target], tag)
        return self.flat.send(tensors, target, tag)

    def recv(self, tensors: list[Tensor], source: int, tag: int = 0) -> Any:
        if tag and source in self._places:
            return self._inside.recv(tensors, self._places[source], tag)
        return self.flat.recv(tensors, source, tag)

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> Any:
        if tag:
            raise BadInput(
                f"transport=hosts receives from any rank only without a tag (tag: {tag}); use transport=gloo"
            )
        return self.flat.recv_anysource(tensors, tag)

    # -- the end -----------------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        self._inside.shutdown()
        self._leaders = None
        super().shutdown()

    abort = shutdown


def _pass_on(name: str) -> None:
    def passed_on(self: HostsGroup, *arguments: Any, **keywords: Any) -> Any:
        return getattr(self.flat, name)(*arguments, **keywords)

    setattr(HostsGroup, name, passed_on)


# torch would do these by itself with the backend that is registered, but called through a Python class it keeps the
# interpreter's lock while it waits for gloo's threads, which may need that lock to end.
for _name in (
    *("allgather", "allgather_coalesced", "_allgather_base", "all_gather_single", "allgather_into_tensor_coalesced"),
    *("all_gather_single_coalesced", "alltoall", "alltoall_base", "all_to_all_single", "barrier", "broadcast"),
    *("gather", "gather_into_tensor", "gather_single", "monitored_barrier", "reduce", "reduce_scatter"),
    *("_reduce_scatter_base", "reduce_scatter_single", "reduce_scatter_tensor_coalesced"),
    *("reduce_scatter_single_coalesced", "scatter", "set_timeout"),
):
    if hasattr(dist.ProcessGroup, _name):
        _pass_on(_name)


def _create(group: Any, options: Options | None) -> Any:
    """Called by torch, which describes the group it wants. Groups that stay within a host need no network."""
    members = list(group.global_ranks_in_group) or list(range(group.group_size))
    world: Any = dist.group.WORLD
    by_host = options.by_host if options is not None else world.by_host
    hosts = [[members.index(rank) for rank in host if rank in members] for host in by_host]
    hosts = [sorted(host) for host in hosts if host]
    if len(hosts) == 1:
        return SharedMemoryGroup(group.store, group.group_rank, group.group_size, group.timeout, None, members)
    made = HostsGroup(group.store, group.group_rank, group.timeout, hosts, members)
    made.by_host = by_host
    return made


dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])
