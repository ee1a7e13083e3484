"""What surrounds a fit: other processes, the network, GPUs, and what a launcher has left in the environment."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as TookTooLong
from contextlib import suppress
from typing import Any

from ...record.neighbours import BUSY, Neighbours
from .check import Check, amount, ok, problem, size, warning

DRIVER = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/kfd")
LAUNCHERS = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Load:
    """The load by others from when it is made until it is asked for."""

    def __init__(self) -> None:
        self._neighbours, self._before = Neighbours(), _times()
        self._neighbours.begin()

    def check(self) -> Check:
        others, share = self._neighbours.cores_of_others(), self._neighbours.share_taken()
        average = os.getloadavg()[0]
        if others is None or share is None:
            return ok("load", f"load average {average:.1f}; what others use is not known on this system")
        words = f"other processes use {others:.1f} cores (load average {average:.1f})"
        if share <= BUSY:
            return ok("load", words)
        culprit = self._busiest()
        words += f", above all {culprit}" if culprit else ""
        return warning(
            "load", f"{words}: fits are slower and figures are unreliable", "wait, end them, or use fewer cores"
        )

    def _busiest(self) -> str | None:
        """The process of others that used the most time meanwhile."""
        import psutil

        own = psutil.Process()
        ours = {own.pid, *(child.pid for child in own.children(recursive=True))}
        used = {pid: spent - self._before.get(pid, 0.0) for pid, spent in _times().items() if pid not in ours}
        pid = max(used, key=lambda one: used[one], default=None)
        if pid is None or used[pid] < 0.05:
            return None
        with suppress(psutil.Error):
            return f"{psutil.Process(pid).name()} (pid {pid})"
        return None


def _times() -> dict[int, float]:
    import psutil

    found = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            times = process.cpu_times()
            found[process.pid] = times.user + times.system
    return found


def check_network() -> Check:
    """Ranks of one host meet through memory; over several, and in scripts, torch needs names and ports."""
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        wanted = (os.environ.get(name) or "").split(",")[0].lstrip("^=")
        there = [interface for _, interface in socket.if_nameindex()]
        if wanted and not any(interface.startswith(wanted) for interface in there):
            return problem(
                "network",
                f"{name}={wanted}, but there are only {', '.join(there)}",
                f"unset {name}, or name one of them",
            )
    try:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
    except OSError as refused:
        return problem("network", f"no port of 127.0.0.1 can be used ({refused})", "bring the loopback interface up")
    host = socket.gethostname()
    if not _resolves(host):
        return warning(
            "network",
            f'the name of this machine, "{host}", has no address: torch.distributed over gloo fails or waits for it',
            f'add "127.0.0.1 {host}" to /etc/hosts, or set GLOO_SOCKET_IFNAME=lo',
        )
    return ok("network", f"ports of 127.0.0.1 can be used, {host} has an address")


def _resolves(host: str, seconds: float = 1.0) -> bool:
    pool = ThreadPoolExecutor(1)
    try:
        return bool(pool.submit(socket.getaddrinfo, host, None).result(seconds))
    except (OSError, TookTooLong):
        return False
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def check_launcher() -> list[Check]:
    """torchrun's variables make a program a rank; exported by hand they surprise."""
    if all(name in os.environ for name in LAUNCHERS):
        world = os.environ["WORLD_SIZE"]
        words = f"RANK, WORLD_SIZE={world} and MASTER_ADDR are set: a fit here takes itself for one of torchrun's ranks"
        return [warning("launcher", words, f"unset {' '.join(LAUNCHERS)}, if this is not under torchrun")]
    return []


def check_gpus(ranks: int) -> Check:
    import torch

    driver = any(map(os.path.exists, DRIVER))
    if not torch.cuda.is_available():
        if not driver:
            return ok("gpu", "no GPU: ranks run on the CPU")
        if torch.version.cuda is None:
            return warning(
                "gpu", "there is a GPU driver, but this torch is built for the CPU alone", "install torch with CUDA"
            )
        if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
            return warning("gpu", "CUDA_VISIBLE_DEVICES hides all GPUs", "unset CUDA_VISIBLE_DEVICES")
        words = f"there is a GPU driver, but torch {torch.__version__} (CUDA {torch.version.cuda}) finds no GPU"
        return problem("gpu", words, "update the driver (see nvidia-smi), or use --device cpu")
    return _gpus_in_use(torch, ranks)


def _gpus_in_use(torch: Any, ranks: int) -> Check:
    count = torch.cuda.device_count()
    free = [torch.cuda.mem_get_info(number) for number in range(count)]
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.distributed.is_nccl_available() else None
    words = f"{amount(count, 'GPU')} ({torch.cuda.get_device_name(0)}), NCCL {nccl or 'missing'}"
    taken = [number for number, (left, total) in enumerate(free) if left < 0.8 * total]
    if taken:
        left = size(min(free[number][0] for number in taken))
        where = ", ".join(f"cuda:{number}" for number in taken)
        return warning("gpu", f"{words}; others hold memory of {where}, {left} are left", "see nvidia-smi")
    if count > 1 and nccl is None:
        return warning("gpu", f"{words}: GPUs talk through host memory", "install torch with NCCL")
    if ranks > count:
        return warning("gpu", f"{words}: {amount(ranks, 'rank')} take turns on them", f"--ranks {count}")
    return ok("gpu", words)
