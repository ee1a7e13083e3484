"""The shared-memory backend: every collective against plain arithmetic, torch's own users of it, and ranks that die."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed import ReduceOp

from manyhands.errors import RankFailed
from manyhands.world import shm

cloudpickle.register_pickle_by_value(sys.modules[__name__])
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["torch", "torch._dynamo", "torch.distributed.fsdp", "cloudpickle", "manyhands.world.shm"]
)
MOST_RANKS = 6
TIMEOUT = timedelta(seconds=60)


class ByValue:
    """Makes a function of this file arrive in a process that cannot import this file."""

    def __init__(self, function: Callable):
        self.function = function

    def __reduce__(self) -> tuple:
        return cloudpickle.loads, (cloudpickle.dumps(self.function),)


def serve(rank: int, pipe: Any) -> None:
    """A rank that does one job after the other, each in a process group of its own."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while (job := pipe.recv()) is not None:
        function, ranks, where, arguments, backend, options, timeout = cloudpickle.loads(job)
        try:
            dist.init_process_group(
                backend,
                store=dist.FileStore(where, ranks),
                rank=rank,
                world_size=ranks,
                timeout=timeout,
                pg_options=options,
            )
            try:
                answer = (True, function(rank, *arguments))
            finally:
                dist.destroy_process_group()
        except BaseException as error:
            answer = (False, (error, traceback.format_exc()))
        pipe.send_bytes(cloudpickle.dumps(answer))


class Crew:
    """Ranks kept alive between tests."""

    def __init__(self) -> None:
        self.pipes, self.processes = [], []

    def grow(self, ranks: int) -> None:
        for rank in range(len(self.processes), ranks):
            here, there = CONTEXT.Pipe()
            process = CONTEXT.Process(target=ByValue(serve), args=(rank, there), daemon=True)
            process.start()
            there.close()
            self.pipes.append(here)
            self.processes.append(process)

    def start(
        self,
        function: Callable,
        ranks: int,
        *arguments: Any,
        backend: str = shm.NAME,
        options: Any = None,
        timeout: timedelta = TIMEOUT,
    ) -> None:
        self.grow(ranks)
        where = tempfile.mktemp(prefix="manyhands-test-")
        job = cloudpickle.dumps((function, ranks, where, arguments, backend, options, timeout))
        for pipe in self.pipes[:ranks]:
            pipe.send(job)

    def answer(self, rank: int, seconds: float = 60) -> tuple[bool, Any]:
        if not self.pipes[rank].poll(seconds):
            raise TimeoutError(f"rank {rank} did not answer in {seconds} s")
        return cloudpickle.loads(self.pipes[rank].recv_bytes())

    def run(self, function: Callable, ranks: int, *arguments: Any, **keywords: Any) -> list[Any]:
        """What the function returned on each rank; raises the first rank's error."""
        self.start(function, ranks, *arguments, **keywords)
        answers = [self.answer(rank) for rank in range(ranks)]
        for fine, result in answers:
            if not fine:
                raise result[0] from RuntimeError(result[1])
        return [result for _, result in answers]

    def close(self) -> None:
        for process in self.processes:
            process.kill()
        for process, pipe in zip(self.processes, self.pipes, strict=True):
            process.join()
            pipe.close()
        self.processes, self.pipes = [], []


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    crew = Crew()
    yield crew
    crew.close()


@pytest.fixture
def doomed() -> Iterator[Crew]:
    """Ranks that a test may kill."""
    crew = Crew()
    yield crew
    crew.close()


# -- collectives against plain arithmetic ------------------------------------------------------------------------------

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
NUMBERS = [*FLOATS, *INTEGERS, torch.bool]
REDUCTIONS = {"sum": torch.add, "product": torch.mul, "min": torch.minimum, "max": torch.maximum, "avg": torch.add}
OPS = {"sum": ReduceOp.SUM, "product": ReduceOp.PRODUCT, "min": ReduceOp.MIN, "max": ReduceOp.MAX, "avg": ReduceOp.AVG}
# torch renamed these two; both names must work on the group
gather_into = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
scatter_from = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
KINDS = [
    "all_reduce", "reduce", "broadcast", "all_gather", "all_gather_into", "gather", "scatter", "reduce_scatter",
    "reduce_scatter_from", "all_to_all", "all_to_all_single", "barrier", "all_reduce_coalesced",
]  # fmt: skip


def data(seed: int, rank: int, shape: tuple[int, ...], dtype: torch.dtype, strided: bool = False) -> Tensor:
    """What a rank hands in, known to every rank."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    if strided and shape:
        wide = (*shape[:-1], 2 * shape[-1])
        return data(seed, rank, wide, dtype)[..., ::2]
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(0, 2 if dtype is torch.bool else 5, shape, generator=generator).to(dtype)


def reduced(op: str, parts: list[Tensor]) -> Tensor:
    """The reduction in rank order, half precision in float32: to the last bit what the backend promises."""
    half = parts[0].dtype in (torch.bfloat16, torch.float16)
    total = parts[0].float() if half else parts[0].clone()
    for part in parts[1:]:
        total = REDUCTIONS[op](total, part.float() if half else part)
    return (total / len(parts) if op == "avg" else total).to(parts[0].dtype)


def joined(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts) if parts[0].dim() else torch.stack(parts)


def collective(call: dict, rank: int, ranks: int) -> tuple[Any, list[tuple[Tensor, Tensor]]]:
    """Start one collective; returns its handle and (what must be there once it is done, what should be there)."""
    kind, seed, shape, dtype, op, strided = (call[key] for key in ("kind", "seed", "shape", "dtype", "op", "strided"))
    root, later = call["root"] % ranks, {"async_op": call["async_op"]}

    def of(r: int, offset: int = 0) -> Tensor:
        return data(seed + 7 * offset, r, shape, dtype, strided)

    def blank() -> Tensor:
        return torch.zeros_like(of(rank))

    everyone, mine = range(ranks), of(rank)
    if kind == "barrier":
        return dist.barrier(**later), []
    if kind == "all_reduce":
        return dist.all_reduce(mine, OPS[op], **later), [(mine, reduced(op, [of(r) for r in everyone]))]
    if kind == "all_reduce_coalesced":
        several = [of(rank, i) for i in range(3)]
        with dist._coalescing_manager(async_ops=call["async_op"]) as work:
            for tensor in several:
                dist.all_reduce(tensor, OPS[op])
        return work, [(several[i], reduced(op, [of(r, i) for r in everyone])) for i in range(3)]
    if kind == "reduce":
        should = reduced(op, [of(r) for r in everyone]) if rank == root else of(rank)
        return dist.reduce(mine, root, OPS[op], **later), [(mine, should)]
    if kind == "broadcast":
        return dist.broadcast(mine, root, **later), [(mine, of(root))]
    if kind == "all_gather":
        outs = [blank() for _ in everyone]
        return dist.all_gather(outs, mine, **later), [(outs[r], of(r)) for r in everyone]
    if kind == "all_gather_into":
        should = joined([of(r) for r in everyone])
        out = torch.zeros_like(should)
        return gather_into(out, mine, **later), [(out, should)]
    if kind == "gather":
        outs = [blank() for _ in everyone] if rank == root else None
        return dist.gather(mine, outs, root, **later), [(outs[r], of(r)) for r in everyone if outs]
    if kind == "scatter":
        out, parts = blank(), [of(root, i) for i in everyone]
        return dist.scatter(out, parts if rank == root else None, root, **later), [(out, parts[rank])]
    if kind == "reduce_scatter":
        out, parts = blank(), [of(rank, i) for i in everyone]
        return dist.reduce_scatter(out, parts, OPS[op], **later), [(out, reduced(op, [of(r, rank) for r in everyone]))]
    if kind == "reduce_scatter_from":
        out, parts = blank(), joined([of(rank, i) for i in everyone])
        work = scatter_from(out, parts, OPS[op], **later)
        return work, [(out, reduced(op, [of(r, rank) for r in everyone]))]
    if kind == "all_to_all":
        outs, parts = [blank() for _ in everyone], [of(rank, i) for i in everyone]
        return dist.all_to_all(outs, parts, **later), [(outs[r], of(r, rank)) for r in everyone]
    # Rank r sends (r + t) % 3 rows to rank t.
    rows = [[(r + t) % 3 for t in everyone] for r in everyone]
    piece = {(r, t): data(seed + t, r, (rows[r][t], *shape), dtype) for r in everyone for t in everyone}
    sent, coming = torch.cat([piece[rank, t] for t in everyone]), torch.cat([piece[r, rank] for r in everyone])
    out = torch.zeros_like(coming)
    sizes = [rows[r][rank] for r in everyone], rows[rank]
    return dist.all_to_all_single(out, sent, *sizes, **later), [(out, coming)]


def follow(rank: int, ranks: int, program: list[dict]) -> int:
    """Do a row of collectives; compare each to the last bit when it is done."""
    under_way: list[tuple[dict, Any, list]] = []

    def finish() -> None:
        for call, work, pairs in under_way:
            if work is not None:
                work.wait()
            for there, should in pairs:
                assert torch.equal(there, should), (call, there, should)
        under_way.clear()

    for call in program:
        under_way.append((call, *collective(call, rank, ranks)))
        if call["finish"]:
            finish()
    finish()
    return len(program)


shapes = st.one_of(
    st.sampled_from([(), (0,), (1,), (3, 0, 2)]),
    st.tuples(st.integers(1, 40)),
    st.tuples(st.integers(1, 6), st.integers(1, 7), st.integers(1, 5)),
    st.tuples(st.integers(1000, 9000)),
)
calls = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(KINDS),
        "seed": st.integers(0, 1000),
        "shape": shapes,
        "dtype": st.sampled_from(NUMBERS),
        "op": st.sampled_from(sorted(OPS)),
        "root": st.integers(0, MOST_RANKS - 1),
        "strided": st.booleans(),
        "async_op": st.booleans(),
        "finish": st.booleans(),
    }
).map(lambda call: {**call, "op": "sum" if call["op"] == "avg" and call["dtype"] not in FLOATS else call["op"]})
PATIENT = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@settings(max_examples=40, **PATIENT)
@given(
    ranks=st.sampled_from([1, 2, 2, 3, 4, MOST_RANKS]),
    slot_pages=st.sampled_from([1, 2, 16, 256]),
    program=st.lists(calls, min_size=1, max_size=12),
)
def test_random_programs_give_what_arithmetic_gives(
    crew: Crew, ranks: int, slot_pages: int, program: list[dict]
) -> None:
    crew.run(follow, ranks, ranks, program, options=shm.Options(slot_bytes=4096 * slot_pages))


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("ranks", [2, 4, MOST_RANKS])
def test_ten_thousand_collectives_in_a_row(crew: Crew, ranks: int) -> None:
    draw = random.Random(ranks)
    program = [
        {
            "kind": draw.choice(KINDS),
            "seed": draw.randrange(1000),
            "shape": draw.choice([(1,), (7, 3), (100,), (3000,)]),
            "dtype": draw.choice(FLOATS),
            "op": draw.choice(sorted(OPS)),
            "root": draw.randrange(ranks),
            "strided": draw.random() < 0.1,
            "async_op": draw.random() < 0.5,
            "finish": draw.random() < 0.2,
        }
        for _ in range(10_000)
    ]
    crew.start(follow, ranks, ranks, program, options=shm.Options(slot_bytes=8192))
    for rank in range(ranks):
        fine, answer = crew.answer(rank, seconds=1000)
        assert fine, answer
        assert answer == 10_000


def sum_of_many(rank: int, ranks: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Sums whose order shows in the last bits, small and large."""
    results = []
    for count in (501, 400_003):
        mine = data(3, rank, (count,), dtype) * 10.0**rank
        dist.all_reduce(mine)
        results.append(mine)
    return tuple(results)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("ranks", [2, 5])
def test_sums_are_in_rank_order_to_the_last_bit_on_every_rank(crew: Crew, ranks: int, dtype: torch.dtype) -> None:
    answers = crew.run(sum_of_many, ranks, ranks, dtype)
    for index, count in enumerate((501, 400_003)):
        should = reduced("sum", [data(3, r, (count,), dtype) * 10.0**r for r in range(ranks)])
        assert all(torch.equal(answer[index], should) for answer in answers)


def largest(rank: int, ranks: int) -> None:
    """Tensors far larger than the memory they pass through."""
    count = 3_000_001
    follow(rank, ranks, [
        {"kind": kind, "seed": 1, "shape": (count // ranks,), "dtype": torch.float32, "op": "sum", "root": 1,
         "strided": False, "async_op": later, "finish": True}
        for kind in KINDS for later in (False, True)
    ])  # fmt: skip


def test_tensors_larger_than_the_slots(crew: Crew) -> None:
    crew.run(largest, 3, 3, options=shm.Options(slot_bytes=64 << 10))


def same_on_both(rank: int) -> list[Tensor]:
    """Integers, so that every order of adding gives the same."""
    results = []
    for kind in KINDS:
        call = {
            "kind": kind,
            "seed": 5,
            "shape": (11, 3),
            "dtype": torch.int64,
            "op": "sum",
            "root": 2,
            "strided": False,
            "async_op": False,
        }
        _, pairs = collective(call, rank, 3)
        if kind != "reduce" or rank == 2:  # gloo leaves half-done sums on the other ranks
            results += [there for there, _ in pairs]
    return results


def test_the_same_program_gives_what_gloo_gives(crew: Crew) -> None:
    ours, theirs = (crew.run(same_on_both, 3, backend=backend) for backend in (shm.NAME, "gloo"))
    for mine, gloo in zip(ours, theirs, strict=True):
        assert len(mine) == len(gloo) > 12
        assert all(torch.equal(a, b) for a, b in zip(mine, gloo, strict=True))


def uneven(rank: int) -> None:
    outs = [torch.zeros(3 * r) for r in range(3)]
    dist.all_gather(outs, torch.full((3 * rank,), float(rank)))
    assert [out.tolist() for out in outs] == [[float(r)] * 3 * r for r in range(3)]
    leaf = torch.ones(4, requires_grad=True)
    dist.broadcast(leaf, 0)  # autograd does not mind
    for op, should in ((ReduceOp.BAND, 0), (ReduceOp.BOR, 7), (ReduceOp.BXOR, 7)):
        bits = torch.tensor([1 << rank])
        dist.all_reduce(bits, op)
        assert bits.item() == should
    complex_ = torch.tensor([1 + 1j, rank * 1j])
    dist.all_reduce(complex_)
    assert complex_.tolist() == [3 + 3j, 3j]
    eighths = torch.tensor([1.5 + rank]).to(torch.float8_e5m2)
    outs = [torch.zeros(1).to(torch.float8_e5m2) for _ in range(3)]
    dist.all_gather(outs, eighths)
    assert [out.float().item() for out in outs] == [1.5, 2.5, 3.5]


def test_uneven_sizes_bits_complex_numbers_and_leaves(crew: Crew) -> None:
    crew.run(uneven, 3)


def entries(rank: int, rows: list[int]) -> Tensor:
    indices = torch.tensor([rows], dtype=torch.int64).view(1, -1)
    return torch.sparse_coo_tensor(indices, torch.full((len(rows), 3), rank + 1.0), (6, 3), check_invariants=False)


def sparse(rank: int, ranks: int) -> None:
    for rows in (lambda r: [r, 5], lambda r: [], lambda r: [2, 2], lambda r: [4] * r):
        mine = entries(rank, rows(rank))
        dist.all_reduce(mine)
        should = torch.stack([entries(r, rows(r)).to_dense() for r in range(ranks)]).sum(0)
        assert torch.equal(mine.to_dense(), should)


def test_sparse_all_reduce(crew: Crew) -> None:
    crew.run(sparse, 3, 3)


# -- handles, futures, order, groups ------------------------------------------------------------------------------------


def handles(rank: int) -> None:
    other = 1 - rank
    # An asynchronous collective must not block what its peer needs first.
    total, message = torch.ones(3), torch.zeros(1)
    if rank == 0:
        work = dist.all_reduce(total, async_op=True)
        dist.send(torch.tensor([7.0]), 1)
    else:
        dist.recv(message, 0)
        assert message.item() == 7
        work = dist.all_reduce(total, async_op=True)
    work.wait()
    assert work.is_completed()
    assert work.is_success()
    assert total.tolist() == [2, 2, 2]
    # Futures complete by themselves, in the thread, and in order.
    seen: list[int] = []
    tensors = [torch.full((n,), float(n)) for n in (10, 1_000_000, 20, 400_000)]
    futures = []
    for index, tensor in enumerate(tensors):
        if rank == 1:
            time.sleep(0.01)
        future = dist.all_reduce(tensor, async_op=True).get_future()
        futures.append(future.then(lambda done, index=index: (seen.append(index), done.value()[0][0].item())[1]))
    assert [future.wait() for future in futures] == [20, 2_000_000, 40, 800_000]
    assert seen == [0, 1, 2, 3]
    # A callback may communicate, too.
    first = torch.ones(1)
    nested = (
        dist.all_reduce(first, async_op=True)
        .get_future()
        .then(lambda done: dist.all_reduce(done.value()[0], async_op=True).get_future().wait()[0].item())
    )
    assert nested.wait() == 4
    # A waiting call goes behind what is already under way.
    if rank == 1:
        time.sleep(0.02)
    large, small = torch.ones(2_000_000), torch.ones(1)
    work = dist.all_reduce(large, async_op=True)
    dist.all_reduce(small)
    assert work.is_completed()
    assert (small.item(), large[-1].item()) == (2, 2)
    # Polling is enough.
    box = torch.zeros(2)
    incoming = dist.irecv(box, other, tag=3)
    dist.send(torch.full((2,), float(rank)), other, tag=3)
    while not incoming.is_completed():
        time.sleep(0.001)
    assert box.tolist() == [other, other]


def test_handles_and_futures(crew: Crew) -> None:
    for _ in range(3):
        crew.run(handles, 2)


def groups(rank: int) -> None:
    evens, odds = dist.new_group([0, 2]), dist.new_group([1, 3])
    reverse = dist.new_group([3, 2, 1, 0])
    mine, works = evens if rank % 2 == 0 else odds, []
    tensors = [torch.full((size,), float(rank)) for size in (5, 500_000, 7)]
    for _ in range(20):
        for tensor, group in zip(tensors, (mine, None, reverse), strict=True):
            tensor.fill_(rank)
            works.append(dist.all_reduce(tensor, group=group, async_op=True))
        for work in works:
            work.wait()
        assert [tensor[-1].item() for tensor in tensors] == [2 + 2 * (rank % 2), 6, 6]
        if rank in (0, 2):  # while the others do something else
            dist.barrier(evens)
    assert dist.get_backend(mine) == shm.NAME
    dist.destroy_process_group(reverse)
    dist.barrier()


def test_several_groups_at_once(crew: Crew) -> None:
    crew.run(groups, 4)


def objects(rank: int) -> None:
    everything: list[Any] = [None] * 3
    dist.all_gather_object(everything, {"rank": rank, "text": "x" * 1000 * rank})
    assert [thing["rank"] for thing in everything] == [0, 1, 2]
    box = [f"from {rank}", rank]
    dist.broadcast_object_list(box, src=2)
    assert box == ["from 2", 2]
    part: list[Any] = [None]
    dist.scatter_object_list(part, ["a", "b", "c"] if rank == 1 else None, src=1)
    assert part == ["abc"[rank]]
    collected = [None] * 3 if rank == 0 else None
    dist.gather_object(rank * 2, collected)
    assert collected in ([0, 2, 4], None)
    if rank == 0:
        dist.send_object_list([{"deep": [1, 2]}], 1)
    elif rank == 1:
        received: list[Any] = [None]
        dist.recv_object_list(received, 0)
        assert received == [{"deep": [1, 2]}]


def test_objects(crew: Crew) -> None:
    crew.run(objects, 3)


# -- messages -----------------------------------------------------------------------------------------------------------


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


@settings(max_examples=25, **PATIENT)
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
        work = dist.isend(torch.ones(4_000_000), 1)
        time.sleep(1)
        assert work.done
    else:
        box, began = torch.zeros(4_000_000), time.perf_counter()
        dist.recv(box, 0)
        assert time.perf_counter() - began < 0.9
        assert box.sum() == 4_000_000
    dist.barrier()


def test_a_long_message_needs_nobody_waiting(crew: Crew) -> None:
    crew.run(sends_go_on, 2)


# -- torch's own users ----------------------------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self, unused: bool = False, sparse: bool = False):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(20, 6, sparse=sparse)
        self.body = nn.Sequential(nn.Linear(6, 300), nn.Tanh(), nn.Linear(300, 300), nn.Tanh(), nn.Linear(300, 3))
        self.spare = nn.Linear(3, 3) if unused else None

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.embed(x))


def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randint(0, 20, (8,), generator=generator), torch.randint(0, 3, (8,), generator=generator)


def train_ddp(rank: int, how: str) -> dict[str, Tensor]:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    from torch.nn.parallel import DistributedDataParallel

    net = Net(unused=how == "unused", sparse=how == "sparse")
    if rank:
        with torch.no_grad():
            net.body[0].weight.zero_()  # DDP must bring rank 0's weights here
    ddp = DistributedDataParallel(net, find_unused_parameters=how == "unused", bucket_cap_mb=0.1)
    if how == "hook":
        ddp.register_comm_hook(None, default_hooks.allreduce_hook)
    if how == "half":
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(4):
        quiet = ddp.no_sync() if how == "no_sync" and step % 2 == 0 else contextlib.nullcontext()
        with quiet:
            x, y = batch(step, rank)
            nn.functional.cross_entropy(ddp(x), y).backward()
        if how != "no_sync" or step % 2:
            optimizer.step()
            optimizer.zero_grad()
    return {name: value.detach() for name, value in net.state_dict().items()}


def train_alone(how: str, ranks: int) -> dict[str, Tensor]:
    net = Net(unused=how == "unused", sparse=how == "sparse")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(4):
        for rank in range(ranks):
            x, y = batch(step, rank)
            (nn.functional.cross_entropy(net(x), y) / ranks).backward()
        if how != "no_sync" or step % 2:
            optimizer.step()
            optimizer.zero_grad()
    return {name: value.detach() for name, value in net.state_dict().items()}


@pytest.mark.parametrize("how", ["default", "hook", "half", "unused", "no_sync", "sparse"])
def test_ddp_trains_as_one_process_does(crew: Crew, how: str) -> None:
    answers, should = crew.run(train_ddp, 3, how), train_alone(how, 3)
    for answer in answers:
        assert all(torch.equal(answer[name], answers[0][name]) for name in should)
        for name, value in should.items():
            torch.testing.assert_close(
                answer[name], value, rtol=1e-2 if how == "half" else 1e-4, atol=1e-3 if how == "half" else 1e-6
            )


def train_fsdp(rank: int) -> dict[str, Tensor]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    net = Net()
    mesh = init_device_mesh("cpu", (3,))
    fully_shard(net.body, mesh=mesh)
    fully_shard(net, mesh=mesh)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(4):
        x, y = batch(step, rank)
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {name: value.full_tensor() for name, value in net.state_dict().items()}


def test_fsdp_trains_as_one_process_does(crew: Crew) -> None:
    should = train_alone("default", 3)
    for answer in crew.run(train_fsdp, 3):
        for name, value in should.items():
            torch.testing.assert_close(answer[name], value, rtol=1e-4, atol=1e-6)


def distribute(rank: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    whole = torch.arange(48.0).view(6, 8)
    spread = distribute_tensor(whole, mesh, [Shard(0), Shard(1)])
    assert spread.to_local().shape == (3, 4)
    assert torch.equal(spread.full_tensor(), whole)
    assert torch.equal(spread.redistribute(mesh, [Replicate(), Shard(0)]).full_tensor(), whole)
    turned = distribute_tensor(whole, mesh["columns"], [Shard(0)])
    assert torch.equal((turned @ turned.t()).full_tensor(), whole @ whole.t())
    assert torch.equal(turned.redistribute(placements=[Shard(1)]).full_tensor(), whole)
    assert turned.sum().full_tensor() == whole.sum()
    assert dist.get_backend(mesh.get_group("rows")) == shm.NAME


def test_dtensor_over_a_two_dimensional_mesh(crew: Crew) -> None:
    crew.run(distribute, 4)


# -- what goes wrong ------------------------------------------------------------------------------------------------------


def all_reduce_forever(rank: int, victim: int, deed: str) -> None:
    for _count in range(200):
        dist.all_reduce(torch.ones(3))
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    if deed == "all_reduce":
        dist.all_reduce(torch.ones(3))
    elif deed == "future":
        dist.all_reduce(torch.ones(3), async_op=True).get_future().wait()
    elif deed == "recv":
        dist.recv(torch.ones(3), victim)
    elif deed == "send":
        dist.send(torch.ones(3_000_000), victim)


@pytest.mark.parametrize("deed", ["all_reduce", "future", "recv", "send"])
def test_a_dead_rank_is_named_within_two_seconds(doomed: Crew, deed: str) -> None:
    began_with = set(os.listdir("/dev/shm"))
    doomed.start(all_reduce_forever, 3, 1, deed)
    doomed.processes[1].join(30)
    began = time.perf_counter()
    for rank in (0, 2):
        fine, answer = doomed.answer(rank, seconds=2)
        assert not fine
        error, trace = answer
        assert isinstance(error, RuntimeError), trace
        assert f"died (process {doomed.processes[1].pid} is gone)" in str(error), trace
        assert "rank 1 " in str(error)
    assert time.perf_counter() - began < 2
    assert set(os.listdir("/dev/shm")) <= began_with


def die_in_backward(rank: int) -> None:
    ddp = torch.nn.parallel.DistributedDataParallel(Net(), bucket_cap_mb=0.1)
    ddp(batch(0, 0)[0]).sum().backward()
    loss = ddp(batch(1, 0)[0]).sum()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    loss.backward()


def test_a_dead_rank_ends_backward(doomed: Crew) -> None:
    doomed.start(die_in_backward, 2)
    doomed.processes[1].join(60)
    fine, answer = doomed.answer(0, seconds=2)
    assert not fine
    assert "rank 1 did not reach all_reduce #" in str(answer[0])


def test_killing_all_ranks_leaves_nothing(doomed: Crew) -> None:
    began_with = set(os.listdir("/dev/shm"))
    doomed.start(all_reduce_forever, 3, -1, "recv")
    time.sleep(0.5)
    doomed.close()
    assert set(os.listdir("/dev/shm")) <= began_with


def one_is_late(rank: int, what: str) -> None:
    dist.barrier()
    if rank == 1:
        time.sleep(1.2)
    elif what == "all_reduce":
        dist.all_reduce(torch.ones(1))
    elif what == "recv":
        dist.recv(torch.ones(5), 1, tag=9)
    elif what == "anyone":
        dist.recv(torch.ones(5))
    elif what == "wait":
        dist.all_reduce(torch.ones(1), async_op=True).wait(timedelta(seconds=0.2))


LATE = {
    "all_reduce": r"^rank 1 did not reach all_reduce #2 within 0.3 s$",
    "recv": r"^rank 1 sent no message of 20 bytes \(recv, tag 9\) within 0.3 s$",
    "anyone": r"^rank 1 and rank 2 sent no message of 20 bytes \(recv, tag 0\) within 0.3 s$",
    "wait": r"^rank 1 did not reach all_reduce #2 within 0.2 s$",
}


@pytest.mark.parametrize("what", LATE)
def test_a_late_rank_is_named(crew: Crew, what: str) -> None:
    ranks = 3 if what == "anyone" else 2
    with pytest.raises(RankFailed, match=LATE[what]):
        crew.run(one_is_late, ranks, what, timeout=timedelta(seconds=0.3))


def disagree(rank: int, what: str) -> None:
    dist.barrier()
    if what == "kind":
        dist.all_reduce(torch.ones(2)) if rank else dist.broadcast(torch.ones(2), 0)
        dist.barrier()
    elif what == "size":
        dist.all_reduce(torch.ones(2 + rank))
    elif what == "all_to_all":
        dist.all_to_all([torch.ones(2)] * 2, [torch.ones(2), torch.ones(2 + rank)])
    elif what == "message":
        if rank:
            dist.send(torch.ones(3), 0, tag=5)
            time.sleep(0.5)
        else:
            dist.recv(torch.ones(4), 1, tag=5)
    elif what == "left":
        if rank == 0:
            dist.all_reduce(torch.ones(2))
    elif what == "again":
        with contextlib.suppress(RankFailed):
            dist.all_reduce(torch.ones(2 + rank))
        dist.all_reduce(torch.ones(2))


DISAGREEMENTS = {
    "kind": "rank 0 called broadcast while rank 1 called all_reduce; every rank of a group must call the same",
    "size": "rank 0 and rank 1 both called all_reduce, but with another size, dtype, root or operation",
    "all_to_all": "rank 1 sends 3 elements to rank 1 in all_to_all, which expects 2",
    "message": "rank 1 sent 12 bytes with tag 5, but rank 0 receives 16; both sides must name the same shape",
    "left": "rank 1 did not reach all_reduce #2: it left the group",
    "again": "rank 0 and rank 1 both called all_reduce",
}


@pytest.mark.parametrize("what", DISAGREEMENTS)
def test_ranks_that_disagree_are_told(crew: Crew, what: str) -> None:
    with pytest.raises(RankFailed, match=DISAGREEMENTS[what]):
        crew.run(disagree, 2, what)
