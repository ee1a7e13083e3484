"""The shared-memory backend against gloo: all_reduce and a message there and back, 1 KB to 64 MB, and torch's DDP on LeNet.

    python benchmarks/transport.py [--ranks 2] [--rounds 7] [--json FILE]

Both backends live in the same processes as two groups, and take turns within every round, so both meet the same machine.
A round of a size is some calls in a row between two barriers; its time is the slowest rank's. Printed is the median over
rounds, with the fastest and the slowest round behind it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from manyhands.world.shm import backend as shm

BACKENDS = (shm.NAME, "gloo")
SIZES = [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
DDP_SAMPLES = (16, 32)
DDP_STEPS = 60


class LeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.features = nn.Sequential(
            nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.head = nn.Sequential(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).flatten(1))


def seconds_per_call(call: Callable[[], Any], calls: int, group: dist.ProcessGroup) -> float:
    """The slowest rank's time for one of `calls` calls in a row."""
    dist.barrier(group)
    began = perf_counter()
    for _ in range(calls):
        call()
    slowest = torch.tensor([(perf_counter() - began) / calls], dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return slowest.item()


def there_and_back(tensor: Tensor, rank: int, group: dist.ProcessGroup) -> None:
    """Rank 0 sends to rank 1, which sends it back; other ranks look on."""
    if rank == 0:
        dist.send(tensor, 1, group)
        dist.recv(tensor, 1, group)
    elif rank == 1:
        dist.recv(tensor, 0, group)
        dist.send(tensor, 0, group)


def ddp_step(samples: int, group: dist.ProcessGroup) -> Callable[[], None]:
    model = DistributedDataParallel(LeNet(), process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, targets = torch.randn(samples, 1, 28, 28), torch.randint(0, 10, (samples,))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    return step


def rank_main(rank: int, where: str, arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        shm.NAME, store=dist.FileStore(where, arguments.ranks), rank=rank, world_size=arguments.ranks,
        timeout=timedelta(seconds=300),
    )  # fmt: skip
    groups = {shm.NAME: dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    trials: dict[str, dict[str, list[float]]] = {}

    def measure(name: str, calls: int, make: Callable[[dist.ProcessGroup], Callable[[], Any]]) -> None:
        ready = {backend: make(group) for backend, group in groups.items()}
        times = trials[name] = {backend: [] for backend in BACKENDS}
        for _ in range(arguments.rounds + 1):
            for backend in BACKENDS:
                times[backend].append(seconds_per_call(ready[backend], calls, groups[backend]))
        for backend in BACKENDS:
            del times[backend][0]  # warming up

    for size in (size for size in SIZES if size <= arguments.largest):
        tensor = torch.zeros(size // 4)
        calls = max(20, min(200, (4 << 20) // size))  # with fewer, where the system had put the ranks before decides
        measure(f"all_reduce {size}", calls, lambda group: lambda: dist.all_reduce(tensor, group=group))
        measure(f"message {size}", calls, lambda group: lambda: there_and_back(tensor, rank, group))
    for samples in DDP_SAMPLES:
        measure(f"ddp {samples}", DDP_STEPS, lambda group: ddp_step(samples, group))
    if rank == 0:
        report(trials, arguments)
    dist.destroy_process_group()


def report(trials: dict[str, dict[str, list[float]]], arguments: argparse.Namespace) -> None:
    print(f"{'':24}{'manyhands_shm':>30}{'gloo':>30}{'gloo / shm':>12}")
    for name, times in trials.items():
        ours, theirs = (statistics.median(times[backend]) for backend in BACKENDS)
        cells = [
            f"{1e6 * statistics.median(times[b]):,.0f} us ({1e6 * min(times[b]):,.0f}-{1e6 * max(times[b]):,.0f})"
            for b in BACKENDS
        ]
        what, number = name.split()
        extra = (
            f"{int(number) / ours / 1e9:.2f} GB/s"
            if what != "ddp"
            else f"{arguments.ranks * int(number) / ours:,.0f} samples/s"
        )
        print(f"{name:24}{cells[0]:>30}{cells[1]:>30}{theirs / ours:>12.2f}   {extra}")
    record = {
        "what": "seconds per call, one entry a round; ddp: seconds per step",
        "ranks": arguments.ranks,
        "rounds": arguments.rounds,
        "machine": {"cpu": processor(), "cores": len(os.sched_getaffinity(0)), "system": platform.platform()},
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "trials": trials,
    }
    text = json.dumps(record)
    if arguments.json:
        with open(arguments.json, "w") as file:
            file.write(text)
    else:
        print(text)


def processor() -> str:
    with open("/proc/cpuinfo") as file:
        names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    return names[0] if names else platform.processor()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--largest", type=int, default=SIZES[-1], help="bytes")
    parser.add_argument("--json", help="write the record to this file instead of printing it")
    arguments = parser.parse_args()
    if arguments.ranks < 2:
        sys.exit(f"a transport needs at least 2 ranks (--ranks: {arguments.ranks})")
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(rank_main, (os.path.join(folder, "store"), arguments), nprocs=arguments.ranks)


if __name__ == "__main__":
    main()
