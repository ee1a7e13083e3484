"""The shared-memory backend: every collective against plain arithmetic, to the last bit."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributed import ReduceOp

from manyhands.world.shm import backend as shm
from tests.world.shm.crew import MOST_RANKS, Crew, gather_into, scatter_from

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
NUMBERS = [*FLOATS, *INTEGERS, torch.bool]
REDUCTIONS = {"sum": torch.add, "product": torch.mul, "min": torch.minimum, "max": torch.maximum, "avg": torch.add}
OPS = {"sum": ReduceOp.SUM, "product": ReduceOp.PRODUCT, "min": ReduceOp.MIN, "max": ReduceOp.MAX, "avg": ReduceOp.AVG}
KINDS = [
    "all_reduce", "reduce", "broadcast", "all_gather", "all_gather_into", "all_gather_in_place", "gather", "scatter",
    "reduce_scatter", "reduce_scatter_from", "all_to_all", "all_to_all_single", "barrier", "all_reduce_coalesced",
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
    if kind == "all_gather_in_place":  # as FSDP does it
        should = joined([of(r) for r in everyone])
        out = torch.zeros_like(should)
        own = out[rank * shape[0] : (rank + 1) * shape[0]] if shape else out[rank]
        return gather_into(out, own.copy_(mine), **later), [(out, should)]
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


@settings(max_examples=25, **PATIENT)
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
    count = 600_001
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
    newer = tuple(map(int, torch.__version__.split(".")[:2])) > (2, 11)
    for kind in KINDS if newer else [kind for kind in KINDS if kind != "all_to_all"]:  # gloo of torch 2.11 has none
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
