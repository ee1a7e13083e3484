"""The memory all ranks of a group map, and who is behind each rank (layout.py says what lies where).

The memory is a memfd made by the group's first rank; the others open it under `/proc/<pid>/fd`. It has no name, so the
kernel frees it with its last process, however that ends, and it does not count against the size of /dev/shm. Where that
is not permitted, it is a file whose name is removed as soon as all ranks have attached. Pages cost nothing until touched.

Order of writes: data is written first, then a word of 8 aligned bytes that announces it. x86 keeps that order by itself
(stores are seen in program order, loads do not pass older loads) and an aligned 8-byte store is never seen in half. Other
machines (ARM) may reorder, so there `fence` takes and frees a lock between the two, which no store may cross; that path
is untried.
"""

from __future__ import annotations

import json
import mmap
import os
import platform
import socket
import tempfile
import threading
from collections.abc import Callable, Sequence

import psutil
import torch
from torch import Tensor
from torch.distributed import Store

from ...errors import BadInput, RankFailed
from ..shared_memory import anonymous_file, open_of_process
from .layout import LINE, Layout

_order_lock = threading.Lock()


def _lock_fence() -> None:
    with _order_lock:
        pass


# None where the processor keeps the order of stores and of loads by itself.
fence: Callable[[], None] | None = None if platform.machine() in ("x86_64", "AMD64") else _lock_fence


class Memory:
    """One rank's mapping: `words` to announce with, tensors over any part to move data with."""

    def __init__(self, store: Store, rank: int, layout: Layout, global_ranks: Sequence[int]):
        self.rank = rank
        self._map, self.layout = _attach(store, rank, layout, global_ranks)
        self.words = memoryview(self._map)[: self.layout.slots_at].cast("Q")
        self._process = os.getpid()
        self.words[rank * LINE + 1] = _start_time(self._process) or 0
        self.words[rank * LINE] = self._process

    def signed_words(self, offset: int, nbytes: int) -> memoryview:
        return memoryview(self._map)[offset : offset + nbytes].cast("q")

    def tensor(self, dtype: torch.dtype, offset: int, count: int) -> Tensor:
        return torch.frombuffer(self._map, dtype=dtype, count=count, offset=offset)

    def loss_of(self, rank: int) -> str | None:
        """Why rank can never come again, or None while it can."""
        pid, started, left = self.words[rank * LINE : rank * LINE + 3]
        if left:
            return "left the group"
        if pid and not _alive(pid, started):
            return f"died (process {pid} is gone)"
        return None

    def leave(self) -> None:
        """Tell the others that this rank comes no more; the mapping goes with the last tensor over it."""
        if os.getpid() == self._process:  # a forked child inherits the mapping but is not the rank
            self.words[self.rank * LINE + 2] = 1


def _attach(store: Store, rank: int, layout: Layout, global_ranks: Sequence[int]) -> tuple[mmap.mmap, Layout]:
    """Map the same memory on every rank: without a name where /proc allows it, else a file with its name removed.

    Rank 0 hears all answers and tells what became of it: if everybody asked everybody, 64 ranks would ask 4,096 times.
    """
    # The n-th time this group of keys is used (a store may outlive a process group), its keys carry n.
    use = (store.add("joined", 1) - 1) // layout.ranks
    ways = {"memfd": (_create_memfd, layout), "file": (_create_file, layout.modest())}
    for way, (create, planned) in ways.items():
        key = f"{use}/{way}"
        fd, path = -1, ""
        if rank == 0:
            fd, path, problem = create(planned.nbytes)
            where = {"fd": fd, "pid": os.getpid(), "path": path, "problem": problem, "host": _host()}
            store.set(f"{key}/where", json.dumps(where))
        where = json.loads(store.get(f"{key}/where"))
        elsewhere = where["host"] != _host()
        mapped, problem = (None, "another host") if elsewhere else _open(where, fd, planned.nbytes)
        answer = {"problem": problem, "host": socket.gethostname() if elsewhere else None}
        store.set(f"{key}/{rank}", json.dumps(answer))
        if rank == 0:
            answers = (json.loads(store.get(f"{key}/{other}")) for other in range(layout.ranks))
            failures = [
                (other, answer) for other, answer in zip(global_ranks, answers, strict=True) if answer["problem"]
            ]
            store.set(f"{key}/failures", json.dumps(failures[:1]))
        failures = json.loads(store.get(f"{key}/failures"))
        if fd >= 0:
            os.close(fd)
        if path:
            os.unlink(path)
        if mapped is not None and not failures:
            return mapped, planned
    [(failed, answer)] = failures
    if answer["host"]:
        raise BadInput(
            f"manyhands_shm joins ranks of one host, but rank {failed} runs on {answer['host']}, "
            f"which is not where rank {global_ranks[0]} runs; use gloo across hosts"
        )
    raise RankFailed(f"rank {failed} cannot map the group's shared memory: {answer['problem']}", rank=failed)


def _create_memfd(nbytes: int) -> tuple[int, str, str]:
    """(descriptor, path, problem) of memory without a name."""
    try:
        return anonymous_file(nbytes), "", ""
    except OSError as error:
        return -1, "", str(error)


def _create_file(nbytes: int) -> tuple[int, str, str]:
    """The same with a name. All of it is reserved: in a full /dev/shm the first write would be a bus error otherwise."""
    fd, path = tempfile.mkstemp(prefix="manyhands-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    try:
        os.posix_fallocate(fd, 0, nbytes) if hasattr(os, "posix_fallocate") else os.ftruncate(fd, nbytes)
    except OSError as error:
        os.close(fd)
        os.unlink(path)
        return -1, "", f"{os.path.dirname(path)} has no room for {nbytes} bytes ({error})"
    return fd, path, ""


def _open(where: dict, own_fd: int, nbytes: int) -> tuple[mmap.mmap | None, str]:
    """The mapping, or the reason why there is none."""
    if where["problem"]:
        return None, where["problem"]
    if own_fd >= 0:
        return mmap.mmap(own_fd, nbytes), ""
    try:
        fd = os.open(where["path"], os.O_RDWR) if where["path"] else open_of_process(where["pid"], where["fd"])
    except OSError as error:
        return None, str(error)
    try:
        return mmap.mmap(fd, nbytes), ""
    finally:
        os.close(fd)


def _host() -> str:
    """Equal for processes that can see each other's memory: one boot of one kernel, one name space of processes."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip() + os.readlink("/proc/self/ns/pid")
    except OSError:
        return socket.gethostname()


def _start_time(pid: int) -> int | None:
    """When the process began (so that a reused number is told apart), 0 where unknown, None when it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None if os.path.exists("/proc/self/stat") else 0
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def _alive(pid: int, started: int) -> bool:
    now = _start_time(pid)
    if now != 0:
        return now == started
    return psutil.pid_exists(pid)
