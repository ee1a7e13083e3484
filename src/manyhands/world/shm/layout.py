"""Where everything lies in the memory that the ranks of a group share.

Lines have 64 bytes each, so that two ranks never write one cache line.

    lines 0 .. N          rank r: process id, its start time, 1 once it has left the group
    lines N .. 3N         arrivals: the stage rank r has reached, even and odd stages apart     stages.py
    lines 3N .. 3N+2N^2   bytes ever written and bytes ever read, for each pair of ranks        channels.py
    slots                 2 x N of `slot_bytes`: even and odd stages apart
    rings                 N x N of `ring_bytes`: from rank s to rank d
"""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import BadInput

LINE = 8  # words of 8 bytes in a cache line
PAGE = 4096
RINGS_BYTES = 256 << 20  # for all rings together; only pages that are used are taken from the machine


@dataclass(frozen=True)
class Layout:
    """Where everything lies, from the number of ranks and the two sizes."""

    ranks: int
    slot_bytes: int
    ring_bytes: int

    def arrival(self, rank: int, parity: int) -> int:
        return (self.ranks * (1 + parity) + rank) * LINE

    def written(self, source: int, target: int) -> int:
        return (3 * self.ranks + 2 * (source * self.ranks + target)) * LINE

    def read(self, source: int, target: int) -> int:
        return self.written(source, target) + LINE

    @property
    def slots_at(self) -> int:
        lines = 3 * self.ranks + 2 * self.ranks**2
        return -(-lines * LINE * 8 // PAGE) * PAGE

    def slot(self, rank: int, parity: int) -> int:
        return self.slots_at + (parity * self.ranks + rank) * self.slot_bytes

    def ring(self, source: int, target: int) -> int:
        return self.slot(0, 2) + (source * self.ranks + target) * self.ring_bytes

    @property
    def nbytes(self) -> int:
        return self.ring(self.ranks, 0)

    def modest(self) -> Layout:
        """The same in little memory, for a /dev/shm that is small and where every page counts, touched or not."""
        return Layout(self.ranks, min(self.slot_bytes, 64 << 10), min(self.ring_bytes, 64 << 10))


@dataclass(frozen=True)
class Options:
    """`init_process_group(..., pg_options=Options(...))`: sizes in bytes, multiples of 4096."""

    slot_bytes: int = 1 << 20
    ring_bytes: int | None = None  # None: 256 MiB over all pairs, at most 4 MiB and at least 64 KiB each

    def layout(self, ranks: int) -> Layout:
        ring_bytes = self.ring_bytes or min(4 << 20, max(64 << 10, RINGS_BYTES // ranks**2 // 4096 * 4096))
        if self.slot_bytes % 4096 or ring_bytes % 4096 or self.slot_bytes < max(4096, 256 * ranks) or ring_bytes <= 0:
            raise BadInput(
                f"slot_bytes and ring_bytes must be multiples of 4096, a slot at least 256 bytes for each rank "
                f"(slot_bytes: {self.slot_bytes}, ring_bytes: {ring_bytes}, ranks: {ranks})"
            )
        return Layout(ranks, self.slot_bytes, ring_bytes)
