"""The collectives, as generators that yield the rank they wait for (stages.py has the picture).

n bytes, N ranks; S = slot_bytes        stages                  bytes written and read by one rank
all_reduce, small (or N = 2)            n / S                   n written, N n read
all_reduce, large                       2 n / S                 n written, 2 n read: each rank reduces its own part
reduce_scatter of N x n                 N n / S                 (N-1) n written, N n read
all_gather of n                         n / S                   n written, N n read
broadcast, all_to_all                   n / S                   n written once, n read
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...errors import RankFailed
from .reductions import AVG, combine
from .stages import CODE, Stages
from .work import Steps

READ_BYTES = 128 << 10  # rather than read more than this from the others, ranks reduce a part each: two stages, not one
JOIN_BYTES = 1 << 20  # up to this much, several tensors are reduced as one


class Collectives(Stages):
    """One rank's side; tensors are flat."""

    def barrier(self) -> Steps:
        yield from self._enter(CODE["barrier"])
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
            parts = list(self._slots(dtype, 0, piece.numel()))
            parts[self.rank].copy_(piece)
            self._arrive(piece.nbytes)
            if root is None or root == self.rank:
                yield from self._all()
                if self.rank < 2:  # the first two are read before anything is written: its own piece need not come back
                    parts[self.rank] = piece
                combine(operation, parts, piece)

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

    def all_reduce_each(self, flats: list[Tensor], operations: list[int]) -> Steps:
        """As one where that is cheap, else one after the other."""
        if len({flat.dtype for flat in flats}) > 1 or sum(flat.nbytes for flat in flats) > JOIN_BYTES:
            for flat, operation in zip(flats, operations, strict=True):
                yield from self.all_reduce(flat, operation)
            return
        joined = torch.cat(flats)
        yield from self.all_reduce(joined, operations[0])
        for flat, part in zip(flats, torch.split(joined, [flat.numel() for flat in flats]), strict=True):
            flat.copy_(part)

    def sparse_all_reduce(self, tensor: Tensor, operation: int) -> Steps:
        """Indices and values of all ranks, added in rank order."""
        mine = tensor.detach().coalesce()
        counts = torch.empty(self.size, dtype=torch.int64)
        yield from self.all_gather_flat(counts, torch.tensor([mine.indices().shape[1]]))
        gathered = []
        for part in (mine.indices().t().contiguous(), mine.values().contiguous()):  # entries first
            outs = [part.new_empty(count, *part.shape[1:]) for count in counts.tolist()]
            yield from self.all_gather([out.view(-1) for out in outs], part.view(-1))
            gathered.append(outs)
        total = torch.zeros_like(mine)
        for indices, values in zip(*gathered, strict=True):
            total = total + torch.sparse_coo_tensor(indices.t(), values, tensor.shape, check_invariants=False)
        with torch.no_grad():  # not detached: a detached sparse tensor cannot take another number of entries
            tensor.copy_((total / self.size if operation == AVG else total).coalesce())

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
                    if target.numel() and target.data_ptr() != piece.data_ptr():  # it may lie there already
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
