"""Ranks that die, are late or disagree; what is refused; and that nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from manyhands.errors import BadInput, RankFailed
from manyhands.world.launch.rank_process import describe
from manyhands.world.shm import backend as shm
from manyhands.world.shm import group_memory as shm_memory
from tests.world.shm.crew import Crew, gather_into, scatter_from, shared_files

SOON = 50  # seconds, many times what it takes on an idle machine; the group's own limit is minutes


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
def test_a_dead_rank_is_named(doomed: Crew, deed: str) -> None:
    began_with = shared_files()
    doomed.start(all_reduce_forever, 3, 1, deed)
    doomed.processes[1].join(30)
    for rank in (0, 2):
        fine, answer = doomed.answer(rank, seconds=SOON)
        assert not fine
        error, trace = answer
        assert isinstance(error, RuntimeError), trace
        assert f"died (process {doomed.processes[1].pid} is gone)" in str(error), trace
        assert "rank 1 " in str(error)
    assert shared_files() <= began_with


def die_in_backward(rank: int) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(200, 200) for _ in range(4)))
    ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.1)
    ddp(torch.ones(1, 200)).sum().backward()
    loss = ddp(torch.ones(1, 200)).sum()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    loss.backward()


def test_a_dead_rank_ends_backward(doomed: Crew) -> None:
    doomed.start(die_in_backward, 2)
    doomed.processes[1].join(60)
    fine, answer = doomed.answer(0, seconds=SOON)
    assert not fine
    assert "rank 1 did not reach all_reduce #" in str(answer[0])
    assert describe(answer[0], 0, None).kind == "consequence"  # though it came through torch's C++


def miss_a_subgroup(rank: int) -> RankFailed | None:
    pair = dist.new_group([1, 2])
    try:
        if rank == 1:
            pair.set_timeout(timedelta(seconds=0.3))  # not before: all meet to make the group
            dist.all_reduce(torch.ones(1), group=pair)
    except RankFailed as failure:
        return failure
    finally:
        dist.barrier()
    return None


def test_a_rank_missing_from_a_subgroup_has_its_own_number(crew: Crew) -> None:
    _, failure, _ = crew.run(miss_a_subgroup, 3)
    assert str(failure) == "rank 2 did not reach all_reduce #1 within 0.3 s"
    assert (failure.rank, failure.kind) == (2, "stalled")


def test_killing_all_ranks_leaves_nothing(doomed: Crew) -> None:
    began_with = shared_files()
    doomed.start(all_reduce_forever, 3, -1, "recv")
    time.sleep(0.5)
    doomed.close()
    assert shared_files() <= began_with


def one_is_late(rank: int, what: str) -> None:
    dist.barrier()
    dist.group.WORLD.set_timeout(timedelta(seconds=0.6))
    if rank == 1:
        time.sleep(6)  # ten times what the others wait at most
    elif what == "all_reduce":
        dist.all_reduce(torch.ones(1))
    elif what == "recv":
        dist.recv(torch.ones(5), 1, tag=9)
    elif what == "anyone":
        dist.recv(torch.ones(5))
    elif what == "wait":
        dist.all_reduce(torch.ones(1), async_op=True).wait(timedelta(seconds=0.4))


LATE = {
    "all_reduce": r"^rank 1 did not reach all_reduce #2 within 0.6 s$",
    "recv": r"^rank 1 sent no message of 20 bytes \(recv, tag 9\) within 0.6 s$",
    "anyone": r"^rank 1 and rank 2 sent no message of 20 bytes \(recv, tag 0\) within 0.6 s$",
    "wait": r"^rank 1 did not reach all_reduce #2 within 0.4 s$",
}


@pytest.mark.soak
@pytest.mark.parametrize(
    "what", ["all_reduce", "anyone", *(pytest.param(what, marks=pytest.mark.soak) for what in ("recv", "wait"))]
)
def test_a_late_rank_is_named(crew: Crew, what: str) -> None:
    ranks = 3 if what == "anyone" else 2
    with pytest.raises(RankFailed, match=LATE[what]):
        crew.run(one_is_late, ranks, what)


def disagree(rank: int, what: str) -> None:
    dist.barrier()
    if what == "kind":
        dist.all_reduce(torch.ones(2)) if rank else dist.broadcast(torch.ones(2), 0)
        dist.barrier()
    elif what == "size":
        dist.all_reduce(torch.ones(2 + rank))
    elif what == "all_to_all":
        dist.all_to_all([torch.ones(2), torch.ones(2)], [torch.ones(2 + rank), torch.ones(2)])
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
    "all_to_all": "rank 1 sends 3 elements to rank 0 in all_to_all, which expects 2",
    "message": "rank 1 sent 12 bytes with tag 5, but rank 0 receives 16; both sides must name the same shape",
    "left": "rank 1 did not reach all_reduce #2: it left the group",
    "again": "rank 0 and rank 1 both called all_reduce",
}


@pytest.mark.parametrize("what", DISAGREEMENTS)
def test_ranks_that_disagree_are_told(crew: Crew, what: str) -> None:
    with pytest.raises(RankFailed, match=DISAGREEMENTS[what]):
        crew.run(disagree, 2, what)


def ask_for_nonsense(rank: int) -> list[str]:
    """Refusals: before anything is sent, so that the group goes on."""
    ones = torch.ones(2)

    def premultiplied() -> None:
        dist.all_reduce(ones, dist._make_nccl_premul_sum(2.0))

    attempts = [
        lambda: dist.all_reduce(torch.ones(2, dtype=torch.int32), ReduceOp.AVG),
        lambda: dist.all_reduce(torch.ones(2, dtype=torch.complex64).to("cpu"), ReduceOp.MAX),
        lambda: dist.all_reduce(ones, ReduceOp.BAND),
        premultiplied,
        lambda: dist.all_reduce(torch.ones(2, device="meta")),
        lambda: dist.broadcast(torch.sparse_coo_tensor([[0]], [1.0], (2,), check_invariants=False), 0),
        lambda: dist.all_gather([torch.zeros(3)], ones),
        lambda: dist.all_gather([torch.zeros(3), torch.zeros(3)], ones),
        lambda: gather_into(torch.zeros(5), ones),
        lambda: scatter_from(torch.zeros(2), torch.zeros(5)),
        lambda: dist.all_to_all_single(torch.zeros(3), torch.zeros(3)),
        lambda: dist.all_to_all_single(torch.zeros(4), torch.zeros(4), [1, 3], [1, 1]),
    ]
    messages = []
    for attempt in attempts:
        try:
            attempt()
        except ValueError as error:
            messages.append(str(error))
    dist.all_reduce(ones)
    assert ones.tolist() == [2, 2]
    return messages


def test_refusals_say_what_was_found(crew: Crew) -> None:
    for messages in crew.run(ask_for_nonsense, 2):
        for message, should in zip(
            messages,
            [
                "manyhands_shm cannot reduce torch.int32 by AVG (",
                "all_reduce does not support",
                "manyhands_shm cannot reduce torch.float32 by BAND (",
                "manyhands_shm cannot reduce torch.float32 by PREMUL_SUM (",
                "manyhands_shm carries dense CPU tensors; found one on meta",
                "manyhands_shm carries dense CPU tensors; found one on cpu, torch.sparse_coo",
                "all_gather over 2 ranks needs a list of 2 tensors that go with one of 2 torch.float32; found 3 torch",
                "found 3 torch.float32, 3 torch.float32",
                "all_gather over 2 ranks needs a tensor of 2 x 2 torch.float32; found 5 torch.float32",
                "reduce_scatter over 2 ranks needs a tensor of 2 x 2 torch.float32; found 5 torch.float32",
                "all_to_all cannot cut the 3 rows of its output into [1, 1] for 2 ranks",
                "all_to_all cannot cut the 4 rows of its input into [1, 1] for 2 ranks",
            ],
            strict=True,
        ):
            assert should in message


@pytest.mark.parametrize("sizes", [{"slot_bytes": 5000}, {"slot_bytes": 0}, {"ring_bytes": 100}, {"ring_bytes": -4096}])
def test_odd_sizes_are_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(BadInput, match="must be multiples of 4096, a slot at least 256 bytes for each rank"):
        shm.Options(**sizes).layout(2)


def in_one_process(ranks: int, function: Callable[[shm.SharedMemoryGroup], Any], **keywords: Any) -> list[Any]:
    """Every rank a thread of this process: what a group needs of its process, and what it gives back, can be seen."""
    store, answers = dist.HashStore(), [None] * ranks

    def run(rank: int) -> None:
        try:
            group = shm.SharedMemoryGroup(store, rank, ranks, timedelta(seconds=10), **keywords)
            try:
                answers[rank] = function(group)
            finally:
                group.shutdown()
        except Exception as error:
            answers[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def sum_of_ones(group: shm.SharedMemoryGroup) -> float:
    tensor = torch.ones(300_000)
    group.allreduce([tensor]).get_future().wait()
    return tensor[-1].item()


def traces_of_groups() -> Counter[str]:
    """Threads, descriptors and mapped memory. What other tests have left may go meanwhile: only what is more counts."""
    found = Counter(f"thread {thread.name}" for thread in threading.enumerate())
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found[f"descriptor {re.sub('[0-9]+', 'N', os.readlink(f'/proc/self/fd/{fd}'))}"] += 1
    with open("/proc/self/maps") as maps:
        found.update(f"memory {line.split()[-1]}" for line in maps if "manyhands" in line)
    return found


def test_a_destroyed_group_leaves_no_thread_no_descriptor_and_no_memory() -> None:
    before = traces_of_groups()
    for _ in range(3):
        assert in_one_process(2, sum_of_ones) == [2, 2]
    assert traces_of_groups() - before == Counter()


@pytest.mark.parametrize("without", ["memfd", "proc"])
def test_without_memfd_or_proc_a_file_serves_and_goes(monkeypatch: pytest.MonkeyPatch, without: str) -> None:
    if without == "memfd":
        monkeypatch.setattr(shm_memory, "_create_memfd", lambda nbytes: (-1, "", "no memfd here"))
    else:
        really_open = os.open

        def open_but_not_proc(path: str, *arguments: Any) -> int:
            if path.startswith("/proc/"):
                raise PermissionError(f"no access to {path}")
            return really_open(path, *arguments)

        monkeypatch.setattr(os, "open", open_but_not_proc)
    before, files = traces_of_groups(), shared_files()
    assert in_one_process(3, sum_of_ones) == [3, 3, 3]
    assert traces_of_groups() - before == Counter()
    assert shared_files() <= files


def test_no_room_for_the_file_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shm_memory, "_create_memfd", lambda nbytes: (-1, "", "no memfd here"))
    monkeypatch.setattr(os, "posix_fallocate", full)
    for error in in_one_process(2, sum_of_ones):
        assert isinstance(error, RankFailed)
        assert "cannot map the group's shared memory: /dev/shm has no room for" in str(error)


def test_ranks_of_two_hosts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shm_memory, "_host", lambda: threading.current_thread().name)
    for error in in_one_process(2, sum_of_ones):
        assert isinstance(error, BadInput)
        assert "joins ranks of one host, but rank 1 runs on" in str(error)
        assert "use gloo across hosts" in str(error)


def count(rank: int) -> int:
    group = dist.group.WORLD
    dist.barrier()
    before = group.moved_bytes
    dist.all_reduce(torch.ones(1000))
    dist.all_reduce(torch.ones(250_000))
    if rank == 0:
        dist.send(torch.ones(10), 1)
    elif rank == 1:
        dist.recv(torch.ones(10), 0)
    return int(group.moved_bytes - before)


def test_bytes_are_counted(crew: Crew) -> None:
    assert crew.run(count, 3) == [1_004_040, 1_004_000, 1_004_000]


def thread_numbers(rank: int) -> tuple[int, int, int]:
    torch.set_num_threads(2)
    try:
        dist.all_reduce(torch.ones(2_000_000), async_op=True).get_future().wait()
        inside: list[int] = []
        other = threading.Thread(target=lambda: inside.append(torch.get_num_threads()))
        other.start()
        other.join()
        return torch.get_num_threads(), inside[0], len([t for t in threading.enumerate() if t.name == shm.NAME])
    finally:
        torch.set_num_threads(1)


def test_the_thread_leaves_torchs_number_of_threads_alone(crew: Crew) -> None:
    assert crew.run(thread_numbers, 2) == [(2, 2, 1), (2, 2, 1)]


class Counting:
    """A store that counts what is asked of it."""

    def __init__(self) -> None:
        self._store, self.asked = dist.HashStore(), 0

    def get(self, key: str) -> bytes:
        self.asked += 1
        return self._store.get(key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_ranks_find_each_other_with_a_few_questions_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every rank asked after every other one: 64 ranks opened the launch's file 4,096 times at their start."""
    store = Counting()
    monkeypatch.setattr(dist, "HashStore", lambda: store)
    assert in_one_process(16, lambda group: group.size()) == [16] * 16
    assert store.asked == 16 * 3  # where, how it went for all; rank 0: how it went for each
