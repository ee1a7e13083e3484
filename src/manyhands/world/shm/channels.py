"""Messages between two ranks: one ring of bytes for each pair and direction.

    written ->  bytes ever put in, advanced by the sender alone
    read    ->  bytes ever taken out, advanced by the receiver alone

        ring   | header 64 | payload ... | header 64 | payload ... |          free = ring_bytes - (written - read)

A message that fits is in the ring when `send` returns; a longer one flows through in pieces, both sides at work. The
receiver takes a message straight into the tensor that waits for its tag. One whose tag nobody asks for yet stays in the
ring until something behind it is wanted, and is then set aside.

    cost of n bytes: n written, n read, one message in flight needs no step from the receiver while n + 64 <= free
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from ctypes import memmove  # moves any number of bytes and lets other threads run meanwhile

import torch
from torch import Tensor

from ...errors import RankFailed
from .group_memory import Memory, fence
from .work import ANYONE, Counts, Steps

HEADER = 64
PIECE = 256 << 10  # a long message is announced this often, so that both sides are busy at once


def _one_less(wanted: Counter[int], tag: int) -> None:
    wanted[tag] -= 1
    if not wanted[tag]:
        del wanted[tag]


class Ring:
    """The bytes from one rank to another."""

    def __init__(self, memory: Memory, source: int, target: int):
        layout = memory.layout
        self.size = layout.ring_bytes
        self._words = memory.words
        self._written_at, self._read_at = layout.written(source, target), layout.read(source, target)
        self.address = memory.tensor(torch.uint8, layout.ring(source, target), 1).data_ptr()
        self.headers = memory.signed_words(layout.ring(source, target), self.size)

    @property
    def written(self) -> int:
        count = self._words[self._written_at]
        if fence:
            fence()
        return count

    @written.setter
    def written(self, count: int) -> None:
        if fence:
            fence()
        self._words[self._written_at] = count

    @property
    def read(self) -> int:
        return self._words[self._read_at]

    @read.setter
    def read(self, count: int) -> None:
        if fence:
            fence()
        self._words[self._read_at] = count


class Inbox:
    """What has come from one rank."""

    def __init__(self, ring: Ring):
        self.ring = ring
        self.wanted: Counter[int] = Counter()  # tags somebody is waiting for
        self.aside: dict[int, deque[Tensor]] = {}  # messages that were in the way of a wanted one
        self.busy = False  # a message is being taken out

    def front(self) -> tuple[int, int] | None:
        """(tag, bytes) of the message at the head of the ring, unless it is already being taken."""
        at = self.ring.read
        if self.busy or self.ring.written == at:
            return None
        nbytes, tag = self.ring.headers[at % self.ring.size // 8 : at % self.ring.size // 8 + 2]
        return tag, nbytes


class Channels:
    """One rank's rings to and from every rank, its own included. Tensors are contiguous."""

    def __init__(self, memory: Memory, counts: Counts, global_ranks: Sequence[int]):
        self.rank, self.size = memory.rank, memory.layout.ranks
        self._memory, self._counts, self._global_ranks = memory, counts, global_ranks
        self._outgoing: dict[int, Ring] = {}
        self._inboxes: dict[int, Inbox] = {}
        self._wanted_from_anyone: Counter[int] = Counter()

    def _outbox(self, target: int) -> Ring:
        if target not in self._outgoing:
            self._outgoing[target] = Ring(self._memory, self.rank, target)
        return self._outgoing[target]

    def _inbox(self, source: int) -> Inbox:
        if source not in self._inboxes:
            self._inboxes[source] = Inbox(Ring(self._memory, source, self.rank))
        return self._inboxes[source]

    def send(self, target: int, tag: int, data: Tensor) -> Steps:
        ring, address, total, sent = self._outbox(target), data.data_ptr(), data.nbytes, 0
        while ring.size - (ring.written - ring.read) < HEADER:
            yield target
        written = ring.written
        at = written % ring.size // 8
        ring.headers[at], ring.headers[at + 1] = total, tag
        written += HEADER
        while sent < total:
            free = ring.size - (written - ring.read)
            if free == 0:
                ring.written = written
                yield target
                continue
            at = written % ring.size
            length = min(total - sent, free, ring.size - at, PIECE)
            memmove(ring.address + at, address + sent, length)
            sent += length
            written += -(-length // HEADER) * HEADER
            if sent < total:
                ring.written = written
            self._counts.progress += 1
        ring.written = written
        self._counts.moved_bytes += total
        self._counts.progress += 1

    def receive(self, source: int, tag: int, data: Tensor) -> Steps:
        wanted = self._inbox(source).wanted
        wanted[tag] += 1
        while not (yield from self._take(source, tag, data)):
            yield source
        _one_less(wanted, tag)

    def receive_from_anyone(self, tag: int, data: Tensor, came_from: Callable[[int], None]) -> Steps:
        self._wanted_from_anyone[tag] += 1
        while True:
            for source in range(self.size):
                if (yield from self._take(source, tag, data)):
                    _one_less(self._wanted_from_anyone, tag)
                    came_from(source)
                    return
            yield ANYONE

    def _take(self, source: int, tag: int, data: Tensor) -> Generator[int, None, bool]:
        """Whether a message with this tag was there and is now in `data`; sets aside what nobody waits for."""
        inbox = self._inbox(source)
        while True:
            if waiting := inbox.aside.get(tag):
                message = waiting.popleft()
                if not waiting:
                    del inbox.aside[tag]
                self._check(source, tag, message.nbytes, data)
                memmove(data.data_ptr(), message.data_ptr(), message.nbytes)
                return True
            front = inbox.front()
            if front is None:
                return False
            its_tag, nbytes = front
            if its_tag == tag:
                self._check(source, tag, nbytes, data)
                yield from self._drain(inbox, source, data)
                return True
            if inbox.wanted[its_tag] or self._wanted_from_anyone[its_tag]:
                return False  # another receive will take it
            message = torch.empty(nbytes, dtype=torch.uint8)
            yield from self._drain(inbox, source, message)
            inbox.aside.setdefault(its_tag, deque()).append(message)

    def _check(self, source: int, tag: int, nbytes: int, data: Tensor) -> None:
        if nbytes != data.nbytes:
            sender, me = self._global_ranks[source], self._global_ranks[self.rank]
            raise RankFailed(
                f"rank {sender} sent {nbytes} bytes with tag {tag}, but rank {me} receives "
                f"{data.nbytes}; both sides must name the same shape and dtype",
                rank=sender,
            )

    def _drain(self, inbox: Inbox, source: int, data: Tensor) -> Steps:
        """Take the front message's payload out of the ring."""
        ring, address, total, taken = inbox.ring, data.data_ptr(), data.nbytes, 0
        read = ring.read + HEADER
        inbox.busy = True
        while taken < total:
            there = ring.written - read
            if there == 0:
                ring.read = read
                yield source
                continue
            at = read % ring.size
            length = min(total - taken, there, ring.size - at, PIECE)
            memmove(address + taken, ring.address + at, length)
            taken += length
            read += -(-length // HEADER) * HEADER
            if taken < total:
                ring.read = read
            self._counts.progress += 1
        ring.read = read
        inbox.busy = False
        self._counts.progress += 1
