"""The collectives, as meetings of all ranks in shared memory.

Every collective is a row of *stages*. In a stage each rank may write into its own slot, announces its arrival, waits for
the ranks whose slots it needs, and reads those. Slots and arrivals exist twice, for even and odd stages:

    rank 0   write slot 0 | arrive s | wait for all s | read slots   | write | arrive s+1 | ...
    rank 1   write slot 1 |     arrive s | ............ read slots   |   write | arrive s+1 | ...

Before a rank writes for stage s+1 it makes sure that all have arrived at s: they are then done with s-1, whose slot it
reuses. So one wait a stage is enough, a rank may run at most one stage ahead, and a root that only gives (broadcast,
scatter) or a rank that only hands in (reduce, gather) does not wait at all. The word that announces an arrival carries
the stage and a fingerprint of what is being done, so ranks that call different things are found out, not mixed up.

    n bytes, N ranks; S = slot_bytes        stages                  bytes written and read by one rank
    all_reduce, small (or N = 2)            n / S                   n written, N n read
    all_reduce, large                       2 n / S                 n written, 2 n read: each rank reduces its own part
    reduce_scatter of N x n                 N n / S                 (N-1) n written, N n read
    all_gather of n                         n / S                   n written, N n read
    broadcast, all_to_all                   n / S                   n written once, n read

Sums run over ranks in rank order, on whichever rank does them, so all ranks hold the same bits, the same in every run.
Half-precision numbers are summed in float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from ...errors import RankFailed
from .group_memory import Memory, fence
from .operations import Meter, Steps

READ_BYTES = 128 << 10  # rather than read more than this from the others, ranks reduce a part each: two stages, not one
CACHED_VIEWS = 1024

NAMES = (
    "barrier",
    "all_reduce",
    "reduce",
    "reduce_scatter",
    "all_gather",
    "gather",
    "broadcast",
    "scatter",
    "all_to_all",
)
_CODE = {name: code << 16 for code, name in enumerate(NAMES)}
_ALL_DTYPES = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
_DTYPE = {dtype: code for code, dtype in enumerate(sorted(_ALL_DTYPES, key=str))}
_HALVES = (torch.bfloat16, torch.float16)

SUM, AVG = int(ReduceOp.SUM), int(ReduceOp.AVG)
COMBINE: dict[int, Callable[..., Tensor]] = {
    SUM: torch.add,
    AVG: torch.add,
    int(ReduceOp.PRODUCT): torch.mul,
    int(ReduceOp.MIN): torch.minimum,
    int(ReduceOp.MAX): torch.maximum,
    int(ReduceOp.BAND): torch.bitwise_and,
    int(ReduceOp.BOR): torch.bitwise_or,
    int(ReduceOp.BXOR): torch.bitwise_xor,
}


def combine(operation: int, parts: list[Tensor], out: Tensor) -> None:
    """Reduce the ranks' parts, in rank order, into `out`, which is none of them."""
    function = COMBINE[operation]
    if out.dtype in _HALVES:
        total = parts[0].float()
        for part in parts[1:]:
            total = function(total, part)
        out.copy_(total.div_(len(parts)) if operation == AVG else total)
        return
    if len(parts) == 1:
        out.copy_(parts[0])
        return
    function(parts[0], parts[1], out=out)
    for part in parts[2:]:
        function(out, part, out=out)
    if operation == AVG:
        out.div_(len(parts))


class Collectives:
    """One rank's side. Every method is a generator that yields the rank it waits for; tensors are flat."""

    def __init__(self, memory: Memory, meter: Meter, global_ranks: Sequence[int]):
        layout = memory.layout
        self.rank, self.size = memory.rank, layout.ranks
        self._memory, self._meter, self._global_ranks = memory, meter, global_ranks
        self._words = memory.words
        self._mine = [layout.arrival(self.rank, parity) for parity in (0, 1)]
        self._others = [
            [(rank, layout.arrival(rank, parity)) for rank in range(self.size) if rank != self.rank]
            for parity in (0, 1)
        ]
        self._stage = self._parity = self._word = 0
        self._met = True  # whether all are known to have arrived at this stage
        self._views: dict[tuple, list] = {}

    # -- stages ------------------------------------------------------------------------------------------------------

    def _enter(self, mark: int) -> Steps:
        """The next stage; afterwards this rank's slot may be written."""
        if not self._met:
            yield from self._all()
        self._stage += 1
        self._parity = self._stage & 1
        self._word = self._stage << 24 | mark
        self._met = False

    def _arrive(self, written: int = 0) -> None:
        if fence:
            fence()
        self._words[self._mine[self._parity]] = self._word
        self._meter.moved_bytes += written
        self._meter.progress += 1

    def _all(self) -> Steps:
        words, word = self._words, self._word
        for rank, at in self._others[self._parity]:
            if words[at] != word:
                yield from self._until(rank, at)
        if fence:
            fence()
        self._met = True

    def _one(self, rank: int) -> Steps:
        if rank != self.rank:
            yield from self._until(rank, self._memory.layout.arrival(rank, self._parity))
            if fence:
                fence()

    def _until(self, rank: int, at: int) -> Steps:
        began = perf_counter()
        while (seen := self._words[at]) != self._word:
            if seen >> 24 == self._stage:
                raise self._disagreement(rank, seen)
            yield rank
        self._meter.progress += 1
        self._meter.waited_seconds += perf_counter() - began

    def missing(self) -> list[int]:
        return [rank for rank, at in self._others[self._parity] if self._words[at] != self._word]

    def _disagreement(self, rank: int, seen: int) -> RankFailed:
        here, there = (NAMES[word >> 16 & 0xFF] for word in (self._word, seen))
        me, other = self._global_ranks[self.rank], self._global_ranks[rank]
        if here == there:
            text = f"rank {me} and rank {other} both called {here}, but with another size, dtype, root or operation"
        else:
            text = f"rank {me} called {here} while rank {other} called {there}"
        return RankFailed(f"{text}; every rank of a group must call the same collectives in the same order", rank=other)

    # -- slots -------------------------------------------------------------------------------------------------------

    def _slots(self, dtype: torch.dtype, start: int, count: int) -> list[Tensor]:
        """Every rank's slot of this stage, from element `start` on."""
        key = (dtype, start, count, self._parity)
        views = self._views.get(key)
        if views is None:
            layout = self._memory.layout
            at = [layout.slot(rank, self._parity) + start * dtype.itemsize for rank in range(self.size)]
            views = [self._memory.tensor(dtype, offset, count) for offset in at]
            self._remember(key, views)
        return views

    def _table(self, dtype: torch.dtype, count: int, shift: int) -> Tensor:
        """(ranks, count): row r is rank r's slot of this stage from element `shift * r` on."""
        key = (dtype, count, self._parity, shift, "table")
        table = self._views.get(key)
        if table is None:
            each, start = self._capacity(dtype), self._memory.layout.slot(0, self._parity)
            everything = self._memory.tensor(dtype, start, each * self.size)
            table = everything.as_strided((self.size, count), (each + shift, 1))
            self._remember(key, table)
        return table

    def _remember(self, key: tuple, views: object) -> None:
        if len(self._views) >= CACHED_VIEWS:
            self._views.clear()
        self._views[key] = views

    def _capacity(self, dtype: torch.dtype, parts: int = 1) -> int:
        """How many elements fit into one of so many equal parts of a slot, each beginning at a cache line."""
        return self._memory.layout.slot_bytes // parts // 64 * 64 // dtype.itemsize

    def _mark(self, name: str, dtype: torch.dtype | None, *facts: int) -> int:
        return _CODE[name] | hash((_DTYPE.get(dtype, -1), *facts)) & 0xFFFF

    # -- collectives -------------------------------------------------------------------------------------------------

    def barrier(self) -> Steps:
        yield from self._enter(_CODE["barrier"])
        self._arrive()
        yield from self._all()

    def all_reduce(self, data: Tensor, operation: int, root: int | None = None) -> Steps:
        """With a root this is `reduce`: only the root's data changes, and only the root waits for the rest."""
        count, dtype = data.numel(), data.dtype
        name = "all_reduce" if root is None else "reduce"
        mark = self._mark(name, dtype, count, operation, -1 if root is None else root)
        if self.size > 2 and data.nbytes * (self.size - 1) > READ_BYTES:
            yield from self._all_reduce_by_parts(data, operation, root, mark)
            return
        most = self._capacity(dtype)
        for low in range(0, max(count, 1), most):
            piece = data if count <= most else data[low : low + most]
            yield from self._enter(mark)
            if count == 0:
                self._arrive()
                continue
            slots = self._slots(dtype, 0, piece.numel())
            slots[self.rank].copy_(piece)
            self._arrive(piece.nbytes)
            if root is None or root == self.rank:
                yield from self._all()
                combine(operation, slots, piece)

    def _all_reduce_by_parts(self, data: Tensor, operation: int, root: int | None, mark: int) -> Steps:
        """Rank r reduces part r of everybody's data, then everybody collects the parts."""
        dtype, me = data.dtype, self.rank
        most = self._capacity(dtype, self.size)
        for low in range(0, data.numel(), most * self.size):
            piece = data[low : low + most * self.size]
            length = piece.numel()
            share = -(-length // self.size)
            start, stop = min(me * share, length), min(me * share + share, length)
            yield from self._enter(mark)
            for a, b in ((0, start), (stop, length)):
                if a < b:
                    self._slots(dtype, a, b - a)[me].copy_(piece[a:b])
            self._arrive(length * dtype.itemsize)
            yield from self._all()
            parts: list[Tensor] = []
            if start < stop:
                parts = list(self._slots(dtype, start, stop - start))
                parts[me] = piece[start:stop]
            yield from self._enter(mark)
            if start < stop:
                combine(operation, parts, self._slots(dtype, start, stop - start)[me])
            self._arrive()
            if root is None or root == me:
                yield from self._all()
                whole = length // share
                piece[: whole * share].view(whole, share).copy_(self._table(dtype, share, share)[:whole])
                if whole * share < length:
                    rest = self._slots(dtype, whole * share, length - whole * share)[whole]
                    piece[whole * share :].copy_(rest)

    def reduce_scatter(self, out: Tensor, parts: list[Tensor], operation: int) -> Steps:
        """parts[r] is what this rank hands to rank r; out becomes the reduction of the parts handed to this rank."""
        dtype, me = out.dtype, self.rank
        lengths = [part.numel() for part in parts]
        mark = self._mark("reduce_scatter", dtype, operation, *lengths)
        most = self._capacity(dtype, self.size)
        for low in range(0, max(*lengths, 1), most):
            yield from self._enter(mark)
            pieces = [part[low : low + most] for part in parts]
            for rank, piece in enumerate(pieces):
                if rank != me and piece.numel():
                    self._slots(dtype, rank * most, piece.numel())[me].copy_(piece)
            self._arrive(sum(piece.nbytes for piece in pieces) - pieces[me].nbytes)
            yield from self._all()
            count = pieces[me].numel()
            if count:
                mine = list(self._slots(dtype, me * most, count))
                mine[me] = pieces[me]
                combine(operation, mine, out[low : low + count])

    def reduce_scatter_flat(self, out: Tensor, data: Tensor, operation: int) -> Steps:
        """The same with the parts one after the other in one tensor, which goes into the slot as a whole if it fits."""
        count, dtype = out.numel(), out.dtype
        if not 0 < count * self.size <= self._capacity(dtype):
            yield from self.reduce_scatter(out, list(data.split(count)) if count else [data] * self.size, operation)
            return
        yield from self._enter(self._mark("reduce_scatter", dtype, operation, count))  # laid out in another way
        self._slots(dtype, 0, data.numel())[self.rank].copy_(data)
        self._arrive(data.nbytes - out.nbytes)
        yield from self._all()
        combine(operation, self._slots(dtype, self.rank * count, count), out)

    def all_gather(self, outs: list[Tensor], data: Tensor) -> Steps:
        """outs[r] becomes rank r's data; sizes may differ as long as all ranks name the same ones."""
        lengths = [out.numel() for out in outs]
        mark = self._mark("all_gather", data.dtype, *lengths)
        yield from self._collect(outs, data, mark, max(lengths), True)

    def all_gather_flat(self, out: Tensor, data: Tensor) -> Steps:
        """The same into one tensor that holds the ranks' data one after the other."""
        count = data.numel()
        if not 0 < count <= self._capacity(data.dtype):
            yield from self.all_gather(list(out.split(count)) if count else [out] * self.size, data)
            return
        yield from self._enter(self._mark("all_gather", data.dtype, *[count] * self.size))
        self._slots(data.dtype, 0, count)[self.rank].copy_(data)
        self._arrive(data.nbytes)
        yield from self._all()
        out.view(self.size, count).copy_(self._table(data.dtype, count, 0))

    def gather(self, outs: list[Tensor], data: Tensor, root: int) -> Steps:
        mark = self._mark("gather", data.dtype, data.numel(), root)
        yield from self._collect(outs, data, mark, data.numel(), self.rank == root)

    def _collect(self, outs: list[Tensor], data: Tensor, mark: int, longest: int, collecting: bool) -> Steps:
        most = self._capacity(data.dtype)
        for low in range(0, max(longest, 1), most):
            piece = data[low : low + most]
            yield from self._enter(mark)
            if piece.numel():
                self._slots(data.dtype, 0, piece.numel())[self.rank].copy_(piece)
            self._arrive(piece.nbytes)
            if collecting:
                yield from self._all()
                for rank, out in enumerate(outs):
                    target = out[low : low + most]
                    if target.numel():
                        target.copy_(self._slots(data.dtype, 0, target.numel())[rank])

    def broadcast(self, data: Tensor, root: int) -> Steps:
        dtype, count = data.dtype, data.numel()
        mark = self._mark("broadcast", dtype, count, root)
        most = self._capacity(dtype)
        for low in range(0, max(count, 1), most):
            piece = data if count <= most else data[low : low + most]
            yield from self._enter(mark)
            if self.rank == root and count:
                self._slots(dtype, 0, piece.numel())[root].copy_(piece)
            self._arrive(piece.nbytes if self.rank == root else 0)
            yield from self._one(root)
            if self.rank != root and count:
                piece.copy_(self._slots(dtype, 0, piece.numel())[root])

    def scatter(self, out: Tensor, parts: list[Tensor], root: int) -> Steps:
        dtype, count = out.dtype, out.numel()
        mark = self._mark("scatter", dtype, count, root)
        most = self._capacity(dtype, self.size)
        for low in range(0, max(count, 1), most):
            target = out[low : low + most]
            length = target.numel()
            yield from self._enter(mark)
            if self.rank == root and length:
                for rank, part in enumerate(parts):
                    self._slots(dtype, rank * most, length)[root].copy_(part[low : low + most])
            self._arrive(target.nbytes * (self.size - 1) if self.rank == root else 0)
            yield from self._one(root)
            if length:
                target.copy_(self._slots(dtype, self.rank * most, length)[root])

    def all_to_all(self, outs: list[Tensor], parts: list[Tensor]) -> Steps:
        """Ranks do not know each other's sizes, so a slot begins with how much this rank has for each of the others."""
        dtype, me = parts[0].dtype, self.rank
        mark = self._mark("all_to_all", dtype)
        head = -(-self.size * 8 // 64) * 64 // dtype.itemsize
        most = (self._capacity(dtype) - head) // self.size
        low, longest = 0, 1
        while low < longest:
            pieces = [part[low : low + most] for part in parts]
            yield from self._enter(mark)
            for rank, piece in enumerate(pieces):
                if piece.numel():
                    self._slots(dtype, head + rank * most, piece.numel())[me].copy_(piece)
            if low == 0:
                self._slots(torch.int64, 0, self.size)[me].copy_(torch.tensor([part.numel() for part in parts]))
            self._arrive(sum(piece.nbytes for piece in pieces) - pieces[me].nbytes)
            yield from self._all()
            if low == 0:
                longest = self._agree(outs)
            for rank, out in enumerate(outs):
                target = out[low : low + most]
                if target.numel():
                    target.copy_(self._slots(dtype, head + me * most, target.numel())[rank])
            low += most

    def _agree(self, outs: list[Tensor]) -> int:
        """The largest part any rank hands over; raises where what I expect is not what comes."""
        table = self._table(torch.int64, self.size, 0).tolist()
        for rank, out in enumerate(outs):
            if table[rank][self.rank] != out.numel():
                sender, me = self._global_ranks[rank], self._global_ranks[self.rank]
                raise RankFailed(
                    f"rank {sender} sends {table[rank][self.rank]} elements to rank {me} in "
                    f"all_to_all, which expects {out.numel()}",
                    rank=sender,
                )
        return max(max(row) for row in table)
