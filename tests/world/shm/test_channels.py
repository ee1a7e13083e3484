"""Messages over shared memory, in any interleaving."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from manyhands.world.shm import backend as shm
from tests.world.shm.crew import Crew


def exchange(rank: int, messages: list[tuple[int, int, int, int]], order: list[int]) -> None:
    """Everybody posts all its sends and receives, receives in another order; equal tags keep the order of sending."""
    sends = [
        dist.isend(torch.full((size,), index, dtype=torch.int32), target, tag=tag)
        for index, (source, target, tag, size) in enumerate(messages) if source == rank
    ]  # fmt: skip
    receives = []
    for index in order:
        source, target, tag, size = messages[index]
        if target == rank:
            box = torch.full((size,), -1, dtype=torch.int32)
            receives.append((dist.irecv(box, source, tag=tag), box, index))
    for work, box, index in receives:
        work.wait()
        assert (box == index).all(), (index, box)
    for work in sends:
        work.wait()


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_messages_in_any_interleaving(crew: Crew, data: st.DataObject) -> None:
    ranks = data.draw(st.integers(1, 4))
    one = st.integers(0, ranks - 1)
    messages = data.draw(
        st.lists(st.tuples(one, one, st.integers(0, 2), st.sampled_from([0, 1, 15, 1000, 9000])), max_size=14)
    )
    order = data.draw(st.permutations(range(len(messages))))
    # Messages of one pair and tag have no names: they are received in the order they were sent, so list them so.
    lanes: dict[tuple, list[int]] = {}
    for index, message in enumerate(messages):
        lanes.setdefault(message[:3], []).append(index)
    order = [lanes[messages[index][:3]].pop(0) for index in order]
    crew.run(exchange, ranks, messages, order, options=shm.Options(ring_bytes=4096))


def conversation(rank: int) -> None:
    other = 1 - rank
    # Both send first: fine as long as it fits into the ring, and beyond if nobody insists on waiting.
    big, box = torch.randn(200_000, generator=torch.Generator().manual_seed(rank)), torch.zeros(200_000)
    work = dist.isend(big, other)
    dist.recv(box, other)
    work.wait()
    assert torch.equal(box, torch.randn(200_000, generator=torch.Generator().manual_seed(other)))
    # A batch, in whichever order.
    sent, came = torch.full((5,), float(rank)), torch.zeros(5)
    ops = [dist.P2POp(dist.irecv, came, other), dist.P2POp(dist.isend, sent, other)]
    for work in dist.batch_isend_irecv(ops if rank else ops[::-1]):
        work.wait()
    assert came.tolist() == [other] * 5
    # Strided on both sides; a late tag before an early one.
    if rank == 0:
        dist.send(torch.arange(12.0).view(3, 4).t(), 1, tag=1)
        dist.send(torch.tensor([5.0]), 1, tag=2)
    else:
        late, table = torch.zeros(1), torch.zeros(3, 4).t()
        dist.recv(late, 0, tag=2)
        dist.recv(table, 0, tag=1)
        assert late.item() == 5
        assert torch.equal(table, torch.arange(12.0).view(3, 4).t())


def test_conversations(crew: Crew) -> None:
    crew.run(conversation, 2)
    crew.run(conversation, 2, options=shm.Options(ring_bytes=4096))


def from_anyone(rank: int) -> None:
    if rank:
        time.sleep(0.01 * (3 - rank))
        dist.send(torch.tensor([rank]), 0, tag=4)
    else:
        senders = set()
        for _ in range(3):
            box = torch.zeros(1, dtype=torch.int64)
            source = dist.recv(box, tag=4)
            assert box.item() == source
            senders.add(source)
        assert senders == {1, 2, 3}


def test_receiving_from_anyone(crew: Crew) -> None:
    crew.run(from_anyone, 4)


def sends_go_on(rank: int) -> None:
    """A message larger than the ring flows while its sender computes."""
    if rank == 0:
        work, until = dist.isend(torch.ones(4_000_000), 1), time.monotonic() + 30
        while not work.done and time.monotonic() < until:
            time.sleep(0.01)
        assert work.done
    else:
        box = torch.zeros(4_000_000)
        dist.recv(box, 0)
        assert box.sum() == 4_000_000
    dist.barrier()


def test_a_long_message_needs_nobody_waiting(crew: Crew) -> None:
    crew.run(sends_go_on, 2)
