"""Sums inside each host and then between hosts: right, the same bits everywhere, beside everything gloo does.

The hosts are made up: the ranks are processes of this machine, and the backend is told which of them belong together.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import manyhands as mh
from manyhands.errors import BadInput, PeerMissing
from manyhands.world.between_hosts import NAME, Options
from manyhands.world.launch.rank_process import describe
from tests.conftest import free_port
from tests.world.shm.crew import Crew, gather_into, scatter_from

SOON = 50  # seconds, many times what it takes on an idle machine
TWO_AND_TWO, THREE_AND_ONE, ONE_AND_TWO, TURNED = [[0, 1], [2, 3]], [[0, 1, 2], [3]], [[0], [1, 2]], [[3, 1], [2, 0]]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
DTYPES += [torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool]


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    """Ranks that every test leaves in order."""
    crew = Crew()
    yield crew
    crew.close()


def run(crew: Crew, function: Any, hosts: list[list[int]], *arguments: Any) -> list[Any]:
    return crew.run(function, sum(map(len, hosts)), *arguments, backend=NAME, options=Options(hosts))


# ---------------------------------------------------------------- sums


def handed_in(rank: int, dtype: torch.dtype, size: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * size + rank)
    if dtype.is_floating_point:
        return torch.randn(size, generator=generator).to(dtype)
    return torch.randint(0, 2 if dtype is torch.bool else 5, (size,), generator=generator).to(dtype)


def sum_up(rank: int, hosts: list[list[int]]) -> list[list[int]]:
    """Every dtype and size, waited for and not; returns the bits."""
    ranks, found = dist.get_world_size(), []
    for dtype in DTYPES:
        sizes = [0, 1, 7, 1000] if dtype is not torch.float32 else [0, 1, 7, 1000, 600_001]
        for size in sizes:
            everyone = [handed_in(other, dtype, size) for other in range(ranks)]
            first, second, third = (handed_in(rank, dtype, size) for _ in range(3))
            work = dist.all_reduce(first, async_op=True)
            dist.all_reduce(second)
            work.wait()
            assert torch.equal(first, second), "the same numbers gave other bits"
            kept = handed_in(rank, dtype, 2 * size)[::2]  # has gaps
            dist.all_reduce(kept, dist.ReduceOp.MAX)
            whole = torch.stack([handed_in(other, dtype, 2 * size)[::2] for other in range(ranks)])
            assert torch.equal(kept, whole.amax(0) if size else kept)
            if dtype.is_floating_point:
                should = torch.stack([part.double() for part in everyone]).sum(0)
                close = {torch.bfloat16: 0.1, torch.float16: 0.02}.get(dtype, 1e-5)
                torch.testing.assert_close(first.double(), should, rtol=0, atol=close)
                dist.all_reduce(third, dist.ReduceOp.AVG)
                torch.testing.assert_close(third.double(), should / ranks, rtol=0, atol=close)
            else:
                should = everyone[0].clone()
                for part in everyone[1:]:
                    should += part
                assert torch.equal(first, should), (dtype, size, hosts)
            found.append(first.view(torch.uint8).int().sum().item() if size > 1000 else first.tolist())
    return found


@pytest.mark.parametrize(
    "hosts",
    [TWO_AND_TWO, TURNED, *(pytest.param(hosts, marks=pytest.mark.soak) for hosts in (THREE_AND_ONE, ONE_AND_TWO))],
    ids=str,
)
def test_sums_are_right_and_the_same_bits_on_all_ranks_and_in_every_run(crew: Crew, hosts: list[list[int]]) -> None:
    first, again = run(crew, sum_up, hosts, hosts), run(crew, sum_up, hosts, hosts)
    assert all(bits == first[0] for bits in [*first, *again])


def leave_alone(rank: int) -> list[bool]:
    """Nobody waits: the sums must go on by themselves, as DDP counts on in backward."""
    futures = [dist.all_reduce(torch.ones(400_000), async_op=True).get_future() for _ in range(3)]
    until = time.monotonic() + SOON
    while not all(future.done() for future in futures) and time.monotonic() < until:
        time.sleep(0.01)
    return [future.done() and bool((future.value()[0] == 4).all()) for future in futures]


def test_sums_nobody_waits_for_go_on(crew: Crew) -> None:
    assert run(crew, leave_alone, TWO_AND_TWO) == [[True] * 3] * 4


# ---------------------------------------------------------------- everything else


def everything_else(rank: int) -> list[str]:
    ranks = dist.get_world_size()
    dist.barrier()
    objects: list[Any] = [None] * ranks
    dist.all_gather_object(objects, f"from {rank}")
    assert objects == [f"from {other}" for other in range(ranks)]
    whole, part, own = torch.zeros(2 * ranks), torch.zeros(2), torch.full((2,), float(rank))
    gather_into(whole, own)
    assert whole.tolist() == [float(other) for other in range(ranks) for _ in range(2)]
    scatter_from(part, whole)
    assert part.tolist() == [ranks * rank] * 2
    dist.broadcast(own, src=ranks - 1)
    assert own.tolist() == [ranks - 1] * 2
    several = [torch.tensor([rank, 1.0]), torch.tensor([1.0])]
    with dist._coalescing_manager():
        for tensor in several:
            dist.all_reduce(tensor)
    assert several[0].tolist() == [sum(range(ranks)), ranks]
    sparse = torch.sparse_coo_tensor([[rank, 0]], [1.0, 1.0], (ranks,), check_invariants=False)
    dist.all_reduce(sparse)
    assert sparse.to_dense().tolist() == [ranks + 1, *[1] * (ranks - 1)]
    for tag in (0, 5):  # over gloo, and in memory where both are on one host
        sends = [dist.isend(torch.tensor([rank, other]), other, tag=tag) for other in range(ranks) if other != rank]
        for other in range(ranks):
            if other != rank:
                message = torch.zeros(2, dtype=torch.int64)
                dist.recv(message, other, tag=tag)
                assert message.tolist() == [other, rank]
        for send in sends:
            send.wait()
    if rank == 0:
        senders = {dist.recv(torch.zeros(1)) for _ in range(ranks - 1)}
        assert senders == set(range(1, ranks))
    else:
        dist.send(torch.ones(1), 0)
    kinds = []
    for members in ([0, 1], [0, ranks - 1], [1, 2, 3]):
        group = dist.new_group(members)
        if rank in members:
            number = torch.tensor([float(rank)])
            dist.all_reduce(number, group=group)
            dist.barrier(group)
            assert number.item() == sum(members)
        kinds.append(type(group).__name__ if rank in members else "")
    with pytest.raises(BadInput, match=r"receives from any rank only without a tag \(tag: 3\); use transport=gloo"):
        dist.recv(torch.zeros(1), tag=3)
    with pytest.raises(BadInput, match=r"transport=hosts cannot reduce torch.int16, which gloo does not know"):
        dist.all_reduce(torch.ones(1, dtype=torch.int16))
    return kinds


def test_every_collective_every_message_and_groups_of_some_ranks(crew: Crew) -> None:
    kinds = run(crew, everything_else, TWO_AND_TWO)
    assert kinds[0] == ["SharedMemoryGroup", "HostsGroup", ""]  # ranks of one host need no network
    assert kinds[3] == ["", "HostsGroup", "HostsGroup"]


# ---------------------------------------------------------------- failures


def lose(rank: int, victim: int) -> None:
    for _ in range(20):
        dist.all_reduce(torch.ones(3))
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    for _ in range(2):
        dist.all_reduce(torch.ones(300_000), async_op=True).get_future().wait()


@pytest.mark.parametrize("victim", [0, 3], ids=["leader", "other"])
def test_a_dead_rank_is_noticed_on_every_host(victim: int) -> None:
    crew = Crew()
    try:
        crew.start(lose, 4, victim, backend=NAME, options=Options(TWO_AND_TWO))
        for rank in {0, 1, 2, 3} - {victim}:
            fine, answer = crew.answer(rank, seconds=SOON)
            assert not fine
            error, trace = answer
            assert describe(error, rank, None).kind == "consequence" or isinstance(error, PeerMissing), trace
    finally:
        crew.close()


# ---------------------------------------------------------------- a fit


def fit(rank: int, port: int) -> tuple[str | None, dict[str, Tensor] | None]:
    place = {"RANK": rank, "LOCAL_RANK": rank % 2, "WORLD_SIZE": 4, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in place.items()}, MASTER_ADDR="127.0.0.1")
    try:
        task = mh.load_task("glyphs:train=128,test=16")
        done = mh.fit(task, mh.DDP(ranks=4, bucket_mb=0.05), max_steps=4, device="cpu", threads=1, progress=False)
        return done.weights_sha256, done.weights
    finally:
        for name in (*place, "MASTER_ADDR"):
            del os.environ[name]


def test_weights_are_those_of_single_and_the_same_in_every_run(crew: Crew) -> None:
    (digest, weights), *_ = run(crew, fit, TWO_AND_TWO, free_port())
    (again, _), *_ = run(crew, fit, TWO_AND_TWO, free_port())
    assert digest is not None
    assert digest == again
    task = mh.load_task("glyphs:train=128,test=16")
    single = mh.fit(task, "single", max_steps=4, device="cpu", threads=1, progress=False)
    for name, value in (single.weights or {}).items():
        torch.testing.assert_close(weights[name], value, rtol=0, atol=1e-6)
