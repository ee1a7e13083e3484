"""`manyhands_shm`: a torch.distributed backend over shared memory, for the ranks of one host.

    import manyhands.world.shm
    torch.distributed.init_process_group("manyhands_shm")        # then DDP, FSDP, DTensor, send and recv as always

It needs nothing else of this package. The work is done in these places, each with its picture and its costs:

    layout.py, group_memory.py   the memory the ranks share: without a name, gone with the last process
    stages.py, collectives.py    all_reduce and the others, as stages: every rank writes its slot and reads the others'
    channels.py                  send and recv, through a ring of bytes for each pair of ranks
    work.py, engine.py           who moves an operation forward: the caller, or a thread while the caller computes
    tensors.py, reductions.py    flat views of what torch hands over, the checks, the sums

and this file gives them torch's names. It carries CPU tensors of any dtype, size and stride (sparse ones in all_reduce),
every collective and its coalesced forms, messages with tags, and several groups at once. A call that waits for its result
does everything itself; one with `async_op=True` tries that for a moment and leaves the rest to the group's thread.

`moved_bytes` of a group counts the payload this rank handed over.
torch.distributed has no authentication and neither has this: any process of the same user can open the memory.
"""

# torch's stubs give these methods overloads (a bare tensor, a timeout) that torch itself never calls on a Python group.
# mypy: disable-error-code="override, assignment"

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...record.cores import available_cores
from .channels import Channels
from .collectives import Collectives
from .engine import Engine
from .group_memory import Memory
from .layout import Options
from .reductions import reduction
from .tensors import check_list, check_whole, flatten, in_turn, returning, split_rows
from .work import ANYONE, Steps, Work

NAME = "manyhands_shm"
COLLECTIVE = "collective"  # the lane of all collectives: they keep their order

WAIT_SECONDS = 1e-3  # how long a call that waits for its result tries before others under way get a look-in
ATTEMPT_SECONDS = 200e-6  # how long an asynchronous collective tries to end in the call itself
ATTEMPT_BYTES = 1 << 20  # larger ones are left to the thread at once


class SharedMemoryGroup(dist.ProcessGroup):
    """What torch.distributed calls; every operation becomes a generator that the engine moves forward."""

    def __init__(
        self,
        store: Any,  # a torch.distributed.Store
        rank: int,
        size: int,
        timeout: timedelta,
        options: Options | None = None,
        global_ranks: Sequence[int] = (),
    ):
        super().__init__(rank, size)  # type: ignore[call-arg]  # torch has this form, its stubs do not
        self._rank, self._size = rank, size
        self.global_ranks = list(global_ranks) or list(range(size))
        self._group_name = self._group_desc = ""
        self._memory = Memory(store, rank, (options or Options()).layout(size), self.global_ranks)
        self._engine = Engine(self, timeout.total_seconds(), crowded=_crowded(size))
        self._counts = self._engine.counts
        self.collectives = Collectives(self._memory, self._counts, self.global_ranks)
        self._channels = Channels(self._memory, self._counts, self.global_ranks)
        self._coalescing: list[Work] | None = None
        self._count = 0

    @property
    def moved_bytes(self) -> int:
        """Payload this rank handed over."""
        return self._counts.moved_bytes

    # -- who is who --------------------------------------------------------------------------------------------------

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def name(self) -> str:
        return NAME

    getBackendName = _get_backend_name = name

    # torch's C++ keeps names with the backends registered under a group; this group is its own backend.
    def _set_group_name(self, name: str) -> None:
        self._group_name = name

    def _set_group_desc(self, desc: str) -> None:
        self._group_desc = desc

    def getGroupName(self) -> str:
        return self._group_name

    def getGroupDesc(self) -> str:
        return self._group_desc

    group_name, group_desc = property(getGroupName), property(getGroupDesc)

    def _get_backend(self, device: torch.device) -> SharedMemoryGroup:
        return self

    supports_coalescing = supports_splitting = False

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        return False

    def missing(self, work: Work) -> list[int]:
        """Who has not done what this operation needs."""
        if work.lane == COLLECTIVE:
            return self.collectives.missing()
        others = [rank for rank in range(self._size) if rank != self._rank]
        return others if work.awaited == ANYONE else [work.awaited]

    def loss_of(self, rank: int) -> str | None:
        return self._memory.loss_of(rank)

    # -- collectives -------------------------------------------------------------------------------------------------

    def start(self, name: str, steps: Steps, outputs: list[Tensor], opts: Any, nbytes: int) -> Work:
        """Begin a collective: the steps it consists of, what it leaves in which tensors, and whether its caller waits."""
        self._count += 1
        waits = not getattr(opts, "asyncOp", True)
        lack = f"did not reach {name} #{self._count}"
        work = Work(self._engine, COLLECTIVE, lack, steps, outputs, background=not waits)
        attempt = WAIT_SECONDS if waits else ATTEMPT_SECONDS if nbytes <= ATTEMPT_BYTES else None
        return self._submit(work, attempt)

    def _submit(self, work: Work, attempt_seconds: float | None) -> Work:
        if self._coalescing is not None:
            self._coalescing.append(work)
        return self._engine.submit(work, attempt_seconds)

    def barrier(self, opts: Any = None) -> Work:
        work = self.start("barrier", self.collectives.barrier(), [], opts, 0)
        work.limit = max(0.0, opts.timeout.total_seconds()) if opts is not None else 0.0
        return work

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> Work:
        [tensor] = tensors
        operation = reduction(opts, tensor.dtype)
        if tensor.is_sparse:
            return self.start("all_reduce", self.collectives.sparse_all_reduce(tensor, operation), tensors, opts, 0)
        [flat], strided = flatten(tensors)
        steps = self.collectives.all_reduce(flat, operation)
        return self.start("all_reduce", returning(steps, strided), tensors, opts, flat.nbytes)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> Work:
        operations = [reduction(opts, tensor.dtype) for tensor in tensors]
        flats, strided = flatten(tensors)
        steps = self.collectives.all_reduce_each(flats, operations)
        return self.start("all_reduce", returning(steps, strided), tensors, opts, sum(flat.nbytes for flat in flats))

    def reduce(self, tensors: list[Tensor], opts: Any) -> Work:
        [flat], strided = flatten(tensors)
        steps = self.collectives.all_reduce(flat, reduction(opts, flat.dtype), opts.rootRank)
        return self.start("reduce", returning(steps, strided), tensors, opts, flat.nbytes)

    def broadcast(self, tensors: list[Tensor], opts: Any) -> Work:
        [flat], strided = flatten(tensors)
        steps = self.collectives.broadcast(flat, opts.rootRank)
        return self.start("broadcast", returning(steps, strided), tensors, opts, flat.nbytes)

    def allgather(self, output_lists: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Work:
        [outputs], ([flat], _) = output_lists, flatten(inputs)
        outs, strided = flatten(outputs)
        check_list("all_gather", outs, flat, self._size, alike=[self._rank])
        steps = self.collectives.all_gather(outs, flat)
        return self.start("all_gather", returning(steps, strided), outputs, opts, sum(out.nbytes for out in outs))

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Work:
        (outs, strided), (flats, _) = flatten(outputs), flatten(inputs)
        for out, flat in zip(outs, flats, strict=True):
            check_whole("all_gather", out, flat, self._size)
        steps = in_turn(map(self.collectives.all_gather_flat, outs, flats))
        return self.start("all_gather", returning(steps, strided), outputs, opts, sum(out.nbytes for out in outs))

    def allgather_coalesced(self, output_lists: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Work:
        """torch's oldest form: output_lists[rank][i] becomes that rank's inputs[i]."""
        works = [
            self.allgather([list(outputs)], [tensor], opts)
            for outputs, tensor in zip(zip(*output_lists, strict=True), inputs, strict=True)
        ]
        return self._together(works)

    def gather(self, output_lists: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> Work:
        [flat], _ = flatten(inputs)
        outs, strided = flatten(output_lists[0] if output_lists else [])
        if self._rank == opts.rootRank:
            check_list("gather", outs, flat, self._size, alike=range(self._size))
        steps = self.collectives.gather(outs, flat, opts.rootRank)
        return self.start("gather", returning(steps, strided), inputs, opts, self._size * flat.nbytes)

    def scatter(self, outputs: list[Tensor], input_lists: list[list[Tensor]], opts: Any) -> Work:
        [out], strided = flatten(outputs)
        parts, _ = flatten(input_lists[0] if input_lists else [])
        if self._rank == opts.rootRank:
            check_list("scatter", parts, out, self._size, alike=range(self._size))
        steps = self.collectives.scatter(out, parts, opts.rootRank)
        return self.start("scatter", returning(steps, strided), outputs, opts, self._size * out.nbytes)

    def reduce_scatter(self, outputs: list[Tensor], input_lists: list[list[Tensor]], opts: Any = None) -> Work:
        ([out], strided), (parts, _) = flatten(outputs), flatten(input_lists[0])
        check_list("reduce_scatter", parts, out, self._size, alike=[self._rank])
        steps = self.collectives.reduce_scatter(out, parts, reduction(opts, out.dtype))
        return self.start("reduce_scatter", returning(steps, strided), outputs, opts, self._size * out.nbytes)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Work:
        (outs, strided), (flats, _) = flatten(outputs), flatten(inputs)
        for out, flat in zip(outs, flats, strict=True):
            check_whole("reduce_scatter", flat, out, self._size)
        operations = [reduction(opts, out.dtype) for out in outs]
        steps = in_turn(map(self.collectives.reduce_scatter_flat, outs, flats, operations))
        nbytes = sum(flat.nbytes for flat in flats)
        return self.start("reduce_scatter", returning(steps, strided), outputs, opts, nbytes)

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Work:
        (outs, strided), (parts, _) = flatten(outputs), flatten(inputs)
        own = parts[self._rank] if len(parts) == self._size else parts[0]
        check_list("all_to_all", parts, own, self._size, alike=[])
        check_list("all_to_all", outs, own, self._size, alike=[self._rank])
        steps = self.collectives.all_to_all(outs, parts)
        return self.start("all_to_all", returning(steps, strided), outputs, opts, sum(part.nbytes for part in parts))

    def all_to_all_single(
        self, output: Tensor, input: Tensor, output_rows: Sequence[int], input_rows: Sequence[int], opts: Any = None
    ) -> Work:
        ([out], strided), ([flat], _) = flatten([output]), flatten([input])
        outs = split_rows("output", output, out, output_rows, self._size)
        parts = split_rows("input", input, flat, input_rows, self._size)
        steps = self.collectives.all_to_all(outs, parts)
        return self.start("all_to_all", returning(steps, strided), [output], opts, flat.nbytes)

    # torch's older names for the same
    _allgather_base, allgather_into_tensor_coalesced = all_gather_single, all_gather_single_coalesced
    _reduce_scatter_base, reduce_scatter_tensor_coalesced = reduce_scatter_single, reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # -- messages ----------------------------------------------------------------------------------------------------

    def send(self, tensors: list[Tensor], target: int, tag: int = 0) -> Work:
        [flat], _ = flatten(tensors)
        steps = self._channels.send(target, tag, flat)
        lack = f"did not take a message of {flat.nbytes} bytes (send, tag {tag})"
        return self._submit(Work(self._engine, ("send", target), lack, steps, tensors, background=True), 0.0)

    def recv(self, tensors: list[Tensor], source: int, tag: int = 0) -> Work:
        return self._receive(tensors, source, tag)

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> Work:
        return self._receive(tensors, ANYONE, tag)

    def _receive(self, tensors: list[Tensor], source: int, tag: int) -> Work:
        [flat], strided = flatten(tensors)
        if source == ANYONE:
            steps = self._channels.receive_from_anyone(tag, flat, lambda rank: setattr(work, "source", rank))
        else:
            steps = self._channels.receive(source, tag, flat)
        lack = f"sent no message of {flat.nbytes} bytes (recv, tag {tag})"
        work = Work(self._engine, ("recv", source, tag), lack, returning(steps, strided), tensors, background=False)
        work.source = source
        self._submit(work, 0.0)
        if not work.done:
            # Messages wait in the ring; the thread is needed only if the sender could not put all of them there.
            coming = sum(other.outputs[0].nbytes for other in self._engine.under_way("recv"))
            if coming > self._memory.layout.ring_bytes // 2:
                self._engine.hand_over(work)
        return work

    # -- together, and the end ---------------------------------------------------------------------------------------

    def _start_coalescing(self, device: torch.device) -> None:
        self._coalescing = []

    def _end_coalescing(self, device: torch.device) -> Work:
        works, self._coalescing = self._coalescing or [], None
        return self._together(works)

    def _together(self, works: list[Work]) -> Work:
        """One handle for several."""

        def steps() -> Steps:
            for work in works:
                while not work.done:
                    yield work.awaited
                if work.error is not None:
                    raise work.error

        outputs = [output for work in works for output in work.outputs]
        lack = "did not take part in coalesced operations"
        return self._engine.submit(Work(self._engine, ("together", id(works)), lack, steps(), outputs, True), 0.0)

    def set_timeout(self, timeout: timedelta) -> None:
        self._engine.timeout = timeout.total_seconds()

    def shutdown(self) -> None:
        if not self._engine.closed:
            self._memory.leave()
            self._engine.close()
            # Whatever still refers to the memory keeps it mapped; torch lets nobody call a destroyed group.
            del self._memory, self.collectives, self._channels

    abort = shutdown


def _crowded(ranks: int) -> bool:
    """Whether there are more ranks than cores, so that one who spins keeps another from running."""
    if dist.is_initialized():
        ranks = max(ranks, dist.get_world_size())
    return ranks > available_cores()


def _create(group: Any, options: Options | None) -> SharedMemoryGroup:
    """Called by torch, which describes the group it wants."""
    ranks = group.global_ranks_in_group
    return SharedMemoryGroup(group.store, group.group_rank, group.group_size, group.timeout, options, ranks)


dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])
