"""Where the ranks of a launch find each other: an anonymous file that only they can open.

Whoever reaches the store of a process group can say where its shared memory lies or whom to connect to, and ranks unpickle
what comes from there. A TCP port, on loopback too, is open to every user of the machine; a file without a name that
processes inherit is not. Where there is no /proc to open it by (macOS), a port on loopback has to do.
"""

from __future__ import annotations

import os
import socket
import sys
from datetime import timedelta

import torch.distributed as dist

from ..shared_memory import anonymous_file

TIMEOUT = timedelta(seconds=60)
_kept: list[
    dist.Store
] = []  # till the process ends: torch's store writes when it goes, and aborts where it may not (ulimit -f)


def prepare() -> tuple[int, int | None]:
    """A descriptor that the ranks inherit, and the port it listens on if it is a socket."""
    if sys.platform == "linux" and os.path.isdir("/proc/self/fd"):
        return anonymous_file(0, "manyhands-meeting"), None
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        return os.dup(listener.fileno()), int(listener.getsockname()[1])


def meet(fd: int, port: int | None, index: int, processes: int) -> dist.Store:
    """The store of a launch, on each of its ranks."""
    if port is None:
        store = dist.FileStore(f"/proc/self/fd/{fd}", processes)
        store.set_timeout(TIMEOUT)
        _kept.append(store)
        return store
    return dist.TCPStore(
        "127.0.0.1",
        port,
        world_size=processes,
        is_master=index == 0,
        master_listen_fd=fd if index == 0 else None,
        wait_for_workers=False,
        timeout=TIMEOUT,
    )


def meet_over_hosts(address: str, port: int) -> dist.Store:
    """The store that an agent keeps for the processes of all hosts; every launch has a store of its own."""
    return dist.TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=TIMEOUT)


def keep_store() -> dist.TCPStore:
    """A store that other hosts reach, at a free port. torch has no way to bind it to one address or to ask who connects."""
    return dist.TCPStore("0.0.0.0", 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
