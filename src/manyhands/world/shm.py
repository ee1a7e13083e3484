"""`manyhands_shm`: a torch.distributed backend over shared memory, for the ranks of one host.

    import manyhands.world.shm
    torch.distributed.init_process_group("manyhands_shm")        # then DDP, FSDP, DTensor, send and recv as always

It needs nothing else of this package. The work is done in four places, each with its picture and its costs:

    shm_memory.py        the memory the ranks share, without a name, gone with the last process
    shm_collectives.py   all_reduce and the others, as stages in which every rank writes its slot and reads the others'
    shm_channels.py      send and recv, through a ring of bytes for each pair of ranks
    shm_engine.py        who moves an operation forward: the caller, or a thread while the caller computes

and this file gives them torch's names. What it carries: CPU tensors of any dtype, size and layout (sparse ones in
all_reduce), every collective and its coalesced form, messages with tags, several groups at once. A call that waits for
its result does everything itself; one with `async_op=True` tries that for a moment and leaves the rest to the thread.

torch.distributed has no authentication and neither has this: any process of the same user can open the memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from manyhands.errors import BadInput
from manyhands.world.shm_channels import Channels
from manyhands.world.shm_collectives import AVG, SUM, Collectives, combine
from manyhands.world.shm_engine import ANYONE, Engine, Meter, Steps, Work
from manyhands.world.shm_memory import Layout, Memory

NAME = "manyhands_shm"

COLLECTIVE = "collective"  # the lane of all collectives: they keep their order

WAIT_SECONDS = 1e-3  # how long a call that waits for its result tries to be the only thing under way
ATTEMPT_SECONDS = 200e-6  # how long an asynchronous collective tries to end in the call itself
ATTEMPT_BYTES = 1 << 20  # larger ones are left to the background thread at once
RINGS_BYTES = 256 << 20  # for all rings together; only what is used is ever taken from the machine


@dataclass(frozen=True)
class Options:
    """`init_process_group(..., pg_options=Options(...))`: sizes in bytes, multiples of 4096."""

    slot_bytes: int = 1 << 20
    ring_bytes: int | None = None  # None: 256 MiB over all pairs, at most 4 MiB and at least 64 KiB each

    def layout(self, ranks: int) -> Layout:
        ring = self.ring_bytes or min(4 << 20, max(64 << 10, RINGS_BYTES // ranks**2 // 4096 * 4096))
        if self.slot_bytes % 4096 or ring % 4096 or self.slot_bytes < 4096 or self.slot_bytes < 256 * ranks:
            raise BadInput(
                f"sizes must be multiples of 4096, and a slot at least 256 bytes a rank (slot_bytes: {self.slot_bytes}, "
                f"ring_bytes: {ring}, ranks: {ranks})"
            )
        return Layout(ranks, self.slot_bytes, ring)


class SharedMemoryGroup(dist.ProcessGroup):
    """What torch.distributed calls; every operation becomes a generator handed to the engine."""

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        size: int,
        timeout: timedelta,
        options: Options | None = None,
        global_ranks: Sequence[int] = (),
    ):
        super().__init__(rank, size)
        self._group_name = self._group_desc = ""
        self._rank, self._size = rank, size
        self._global_ranks = list(global_ranks) or list(range(size))
        self._memory: Memory | None = Memory(store, rank, (options or Options()).layout(size))
        self._engine = Engine(self, timeout.total_seconds(), crowded=_crowded(size))
        self.meter: Meter = self._engine.meter
        self._collectives = Collectives(self._memory, self.meter, self.title)
        self._channels = Channels(self._memory, self.meter, self.title)
        self._coalescing: list[Work] | None = None
        self._count = 0

    # -- who and where -----------------------------------------------------------------------------------------------

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def name(self) -> str:
        return NAME

    getBackendName = _get_backend_name = name

    # torch's C++ keeps the next two with the backends registered under a group, of which this one has none.
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

    def title(self, rank: int) -> str:
        return f"rank {self._global_ranks[rank]}"

    def missing(self, work: Work) -> list[int]:
        """Who has not done what this operation needs."""
        if work.lane == COLLECTIVE:
            return self._collectives.missing()
        others = [rank for rank in range(self._size) if rank != self._rank]
        return others if work.awaited == ANYONE else [work.awaited]

    def loss_of(self, rank: int) -> str | None:
        return self._memory.loss_of(rank)

    # -- collectives -------------------------------------------------------------------------------------------------

    def _start(self, name: str, steps: Steps, outputs: list[Tensor], opts: Any, nbytes: int) -> Work:
        self._count += 1
        waits = not getattr(opts, "asyncOp", True)
        work = Work(self._engine, COLLECTIVE, f"did not reach {name} #{self._count}", steps, outputs, background=not waits)
        attempt = WAIT_SECONDS if waits else ATTEMPT_SECONDS if nbytes <= ATTEMPT_BYTES else None
        return self._submit(work, attempt)

    def _submit(self, work: Work, attempt_seconds: float | None) -> Work:
        if self._coalescing is not None:
            self._coalescing.append(work)
        return self._engine.submit(work, attempt_seconds)

    def barrier(self, opts: Any = None) -> Work:
        work = self._start("barrier", self._collectives.barrier(), [], opts, 0)
        work.timeout = max(0.0, opts.timeout.total_seconds()) if opts is not None else 0.0
        return work

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> Work:
        [tensor] = tensors
        operation = _operation(opts, tensor.dtype)
        if tensor.is_sparse:
            return self._start("all_reduce", self._sparse_all_reduce(tensor, operation), tensors, opts, tensor._nnz())
        [flat], strided = _flats(tensors)
        steps = self._collectives.all_reduce(flat, operation)
        return self._start("all_reduce", _returning(steps, strided), tensors, opts, flat.nbytes)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> Work:
        operations = [_operation(opts, tensor.dtype) for tensor in tensors]
        flats, strided = _flats(tensors)
        steps = self._all_reduce_each(flats, operations)
        return self._start("all_reduce", _returning(steps, strided), tensors, opts, sum(flat.nbytes for flat in flats))

    def _all_reduce_each(self, flats: list[Tensor], operations: list[int]) -> Steps:
        """As one where they fit into a slot together, else one after the other."""
        joinable = len({flat.dtype for flat in flats}) == 1 and sum(flat.nbytes for flat in flats) <= ATTEMPT_BYTES
        if not joinable:
            for flat, operation in zip(flats, operations, strict=True):
                yield from self._collectives.all_reduce(flat, operation)
            return
        joined = torch.cat(flats)
        yield from self._collectives.all_reduce(joined, operations[0])
        for flat, part in zip(flats, joined.split([flat.numel() for flat in flats]), strict=True):
            flat.copy_(part)

    def _sparse_all_reduce(self, tensor: Tensor, operation: int) -> Steps:
        """Indices and values of all ranks, added in rank order."""
        mine = tensor.detach().coalesce()
        counts = torch.empty(self._size, dtype=torch.int64)
        yield from self._collectives.all_gather_flat(counts, torch.tensor([mine._nnz()]))
        gathered = []
        for part in (mine.indices().t().contiguous(), mine.values().contiguous()):  # entries first
            outs = [part.new_empty(count, *part.shape[1:]) for count in counts.tolist()]
            yield from self._collectives.all_gather([out.view(-1) for out in outs], part.view(-1))
            gathered.append(outs)
        total = torch.zeros_like(mine)
        for indices, values in zip(*gathered, strict=True):
            total = total + torch.sparse_coo_tensor(indices.t(), values, tensor.shape, check_invariants=False)
        with torch.no_grad():  # a detached sparse tensor cannot take another number of entries
            tensor.copy_((total / self._size if operation == AVG else total).coalesce())

    def reduce(self, tensors: list[Tensor], opts: Any) -> Work:
        [flat], strided = _flats(tensors)
        steps = self._collectives.all_reduce(flat, _operation(opts, flat.dtype), opts.rootRank)
        return self._start("reduce", _returning(steps, strided), tensors, opts, flat.nbytes)

    def broadcast(self, tensors: list[Tensor], opts: Any) -> Work:
        [flat], strided = _flats(tensors)
        steps = self._collectives.broadcast(flat, opts.rootRank)
        return self._start("broadcast", _returning(steps, strided), tensors, opts, flat.nbytes)

    def allgather(self, output_lists: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Work:
        [outputs], ([flat], _) = output_lists, _flats(inputs)
        outs, strided = _flats(outputs)
        self._check("all_gather", outs, flat, each=False)
        steps = self._collectives.all_gather(outs, flat)
        return self._start("all_gather", _returning(steps, strided), outputs, opts, sum(out.nbytes for out in outs))

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Work:
        outs, strided = _flats(outputs)
        flats, _ = _flats(inputs)
        for out, flat in zip(outs, flats, strict=True):
            self._check_whole("all_gather", out, flat)
        steps = _in_turn(map(self._collectives.all_gather_flat, outs, flats))
        return self._start("all_gather", _returning(steps, strided), outputs, opts, sum(out.nbytes for out in outs))

    def allgather_coalesced(self, output_lists: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Work:
        """torch's oldest form: output_lists[rank][i] becomes that rank's inputs[i]."""
        flats, _ = _flats(inputs)
        gathers, strided = [], []
        for outputs, flat in zip(zip(*output_lists, strict=True), flats, strict=True):
            outs, odd = _flats(outputs)
            self._check("all_gather", outs, flat, each=True)
            gathers.append(self._collectives.all_gather(outs, flat))
            strided += odd
        nbytes = self._size * sum(flat.nbytes for flat in flats)
        return self._start("all_gather", _returning(_in_turn(gathers), strided), [], opts, nbytes)

    def gather(self, output_lists: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> Work:
        [flat], _ = _flats(inputs)
        outs, strided = _flats(output_lists[0] if output_lists else [])
        if self._rank == opts.rootRank:
            self._check("gather", outs, flat, each=True)
        steps = self._collectives.gather(outs, flat, opts.rootRank)
        return self._start("gather", _returning(steps, strided), inputs, opts, self._size * flat.nbytes)

    def scatter(self, outputs: list[Tensor], input_lists: list[list[Tensor]], opts: Any) -> Work:
        [out], strided = _flats(outputs)
        parts, _ = _flats(input_lists[0] if input_lists else [])
        if self._rank == opts.rootRank:
            self._check("scatter", parts, out, each=True)
        steps = self._collectives.scatter(out, parts, opts.rootRank)
        return self._start("scatter", _returning(steps, strided), outputs, opts, self._size * out.nbytes)

    def reduce_scatter(self, outputs: list[Tensor], input_lists: list[list[Tensor]], opts: Any = None) -> Work:
        [out], strided = _flats(outputs)
        parts, _ = _flats(input_lists[0])
        self._check("reduce_scatter", parts, out, each=False)
        steps = self._collectives.reduce_scatter(out, parts, _operation(opts, out.dtype))
        return self._start("reduce_scatter", _returning(steps, strided), outputs, opts, self._size * out.nbytes)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Work:
        outs, strided = _flats(outputs)
        flats, _ = _flats(inputs)
        steps = []
        for out, flat in zip(outs, flats, strict=True):
            self._check_whole("reduce_scatter", flat, out)
            steps.append(self._collectives.reduce_scatter(out, list(flat.tensor_split(self._size)), _operation(opts, out.dtype)))
        nbytes = sum(flat.nbytes for flat in flats)
        return self._start("reduce_scatter", _returning(_in_turn(steps), strided), outputs, opts, nbytes)

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Work:
        outs, strided = _flats(outputs)
        parts, _ = _flats(inputs)
        self._check("all_to_all", parts, outs[0], each=None)
        self._check("all_to_all", outs, parts[0], each=None)
        steps = self._collectives.all_to_all(outs, parts)
        return self._start("all_to_all", _returning(steps, strided), outputs, opts, sum(part.nbytes for part in parts))

    def all_to_all_single(
        self, output: Tensor, input: Tensor, output_sizes: Sequence[int], input_sizes: Sequence[int], opts: Any = None
    ) -> Work:
        ([out], strided), ([flat], _) = _flats([output]), _flats([input])
        outs = out.split(self._rows("output", output, output_sizes))
        parts = flat.split(self._rows("input", input, input_sizes))
        steps = self._collectives.all_to_all(list(outs), list(parts))
        return self._start("all_to_all", _returning(steps, strided), [output], opts, flat.nbytes)

    # torch's older names for the same
    _allgather_base, allgather_into_tensor_coalesced = all_gather_single, all_gather_single_coalesced
    _reduce_scatter_base, reduce_scatter_tensor_coalesced = reduce_scatter_single, reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # -- messages ----------------------------------------------------------------------------------------------------

    def send(self, tensors: list[Tensor], target: int, tag: int = 0) -> Work:
        [flat], _ = _flats(tensors)
        steps = self._channels.send(target, tag, flat.view(torch.uint8))
        lack = f"did not take a message of {flat.nbytes} bytes (send, tag {tag})"
        return self._submit(Work(self._engine, ("send", target), lack, steps, tensors, background=True), 0.0)

    def recv(self, tensors: list[Tensor], source: int, tag: int = 0) -> Work:
        return self._receive(tensors, source, tag)

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> Work:
        return self._receive(tensors, ANYONE, tag)

    def _receive(self, tensors: list[Tensor], source: int, tag: int) -> Work:
        [flat], strided = _flats(tensors)
        data = flat.view(torch.uint8)
        if source == ANYONE:
            steps = self._channels.receive_from_anyone(tag, data, lambda rank: setattr(work, "source", rank))
        else:
            steps = self._channels.receive(source, tag, data)
        lack = f"sent no message of {flat.nbytes} bytes (recv, tag {tag})"
        # What the sender can put into the ring waits there; the thread is needed only where it cannot.
        coming = sum(work.outputs[0].nbytes for work in self._engine.under_way("recv")) + flat.nbytes
        background = coming > self._memory.layout.ring_bytes // 2
        work = Work(self._engine, ("recv", source, tag), lack, _returning(steps, strided), tensors, background)
        work.source = source
        return self._submit(work, 0.0)

    # -- the group's life --------------------------------------------------------------------------------------------

    def _start_coalescing(self, device: torch.device) -> None:
        self._coalescing = []

    def _end_coalescing(self, device: torch.device) -> Work:
        works, self._coalescing = self._coalescing or [], None
        lack = "did not take part in a coalesced operation"
        return self._submit(Work(self._engine, ("coalesced", id(works)), lack, _together(works), [], True), 0.0)

    def set_timeout(self, timeout: timedelta) -> None:
        self._engine.timeout = timeout.total_seconds()

    def shutdown(self) -> None:
        if not self._engine.closed:
            self._memory.leave()
            self._engine.close()
            del self._memory, self._collectives, self._channels

    abort = shutdown

    # -- what torch's C++ would have checked -------------------------------------------------------------------------

    def _check(self, name: str, tensors: list[Tensor], like: Tensor, each: bool | None) -> None:
        """One tensor a rank, of one dtype; as large as `like`: each (True), this rank's (False), none (None)."""
        compared = {True: tensors, False: tensors[self._rank : self._rank + 1], None: []}[each]
        sizes = {tensor.numel() for tensor in compared} - {like.numel()}
        dtypes = {tensor.dtype for tensor in tensors} - {like.dtype}
        if len(tensors) != self._size or sizes or dtypes:
            raise BadInput(
                f"{name} needs a list of {self._size} tensors (one a rank) of {like.dtype} with {like.numel()} elements; "
                f"found {len(tensors)} of {', '.join(sorted({str(t.dtype) for t in tensors})) or 'nothing'} with "
                f"{[tensor.numel() for tensor in tensors]} elements"
            )

    def _check_whole(self, name: str, whole: Tensor, part: Tensor) -> None:
        if whole.numel() != self._size * part.numel() or whole.dtype != part.dtype:
            raise BadInput(
                f"{name} over {self._size} ranks needs {self._size} x {part.numel()} elements of {part.dtype} on its long "
                f"side; found {whole.numel()} of {whole.dtype}"
            )

    def _rows(self, side: str, tensor: Tensor, sizes: Sequence[int]) -> list[int]:
        """Elements for each rank, from rows for each rank (none given: equal shares)."""
        rows = tensor.shape[0] if tensor.dim() else 0
        sizes = list(sizes) or [rows // self._size] * self._size
        if len(sizes) != self._size or sum(sizes) != rows:
            raise BadInput(f"all_to_all cannot split {rows} rows of its {side} over {self._size} ranks as {sizes}")
        return [size * (tensor.numel() // rows if rows else 0) for size in sizes]


def _flats(tensors: Iterable[Tensor]) -> tuple[list[Tensor], list[tuple[Tensor, Tensor]]]:
    """One-dimensional views of the tensors; of those that have none, copies, paired with their tensors."""
    flats, strided = [], []
    for tensor in tensors:
        if not tensor.is_cpu or tensor.layout != torch.strided:
            raise BadInput(f"{NAME} carries dense CPU tensors; found one on {tensor.device} with {tensor.layout}")
        tensor = tensor.detach()  # communication is not recorded by autograd
        if not tensor.is_contiguous():
            strided.append((tensor, tensor.contiguous().view(-1)))
            flats.append(strided[-1][1])
        else:
            flats.append(tensor if tensor.dim() == 1 else tensor.view(-1))
    return flats, strided


def _returning(steps: Steps, strided: list[tuple[Tensor, Tensor]]) -> Steps:
    """The steps, then what came back into the tensors that had to be copied to be flat."""
    return _then_copy(steps, strided) if strided else steps


def _then_copy(steps: Steps, strided: list[tuple[Tensor, Tensor]]) -> Steps:
    yield from steps
    for tensor, flat in strided:
        tensor.copy_(flat.view(tensor.shape))


def _in_turn(several: Iterable[Steps]) -> Steps:
    for steps in several:
        yield from steps


def _together(works: list[Work]) -> Steps:
    for work in works:
        while not work.done:
            yield work.awaited
        if work.error is not None:
            raise work.error


def _operation(opts: Any, dtype: torch.dtype) -> int:
    operation = SUM if opts is None else int(opts.reduceOp.op)
    if problem := _problem(operation, dtype):
        raise BadInput(problem)
    return operation


@cache
def _problem(operation: int, dtype: torch.dtype) -> str | None:
    """Why these cannot be reduced, found by trying."""
    name = dist.ReduceOp.RedOpType(operation).name
    try:
        combine(operation, [torch.ones(1, dtype=dtype)] * 2, torch.ones(1, dtype=dtype))
    except (RuntimeError, KeyError) as error:
        return f"{NAME} cannot reduce {dtype} with {name} ({str(error).splitlines()[0]})"
    return None


def _crowded(ranks: int) -> bool:
    """Whether there are more ranks than cores, so that spinning would keep others from running."""
    if dist.is_initialized():
        ranks = max(ranks, dist.get_world_size())
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return ranks > cores


def _create(made_by_torch: Any, options: Options | None) -> SharedMemoryGroup:
    return SharedMemoryGroup(
        made_by_torch.store,
        made_by_torch.group_rank,
        made_by_torch.group_size,
        made_by_torch.timeout,
        options,
        made_by_torch.global_ranks_in_group,
    )


dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])
