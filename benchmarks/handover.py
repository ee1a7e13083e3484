"""What a step waits to take a ready batch from a loader's worker process: shared memory or a copy through the pipe.

    python benchmarks/handover.py --rounds 5

Both go through torch's DataLoader with one worker, in turn; between two batches the process computes as a step would,
longer than the worker needs. `fit` copies batches of up to 512 KiB.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from tables import show
from torch.utils.data import DataLoader, Dataset

from manyhands.data.handover import PIPE_BYTES, small_by_pipe

BATCHES = 40


class Zeros(Dataset):
    def __init__(self, size: int, send: Callable[[Any], Any]):
        self.size, self.send = size, send

    def __len__(self) -> int:
        return BATCHES + 10

    def __getitem__(self, index: int) -> Any:
        return self.send((torch.zeros(self.size, dtype=torch.uint8), torch.zeros(32, dtype=torch.int64)))


def as_it_is(value: Any) -> Any:
    return value


def wait(size: int, send: Callable[[Any], Any]) -> float:
    """Median microseconds until a batch is there."""
    weights, waits = torch.randn(500, 500), []
    for _ in DataLoader(Zeros(size, send), batch_size=None, collate_fn=as_it_is, num_workers=1):
        if waits:
            waits[-1] = (time.perf_counter() - waits[-1]) * 1e6
        for _ in range(3):
            weights @ weights
        waits.append(time.perf_counter())
    return statistics.median(waits[10:-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kib", type=int, nargs="+", default=[25, 100, 400])
    options = parser.parse_args()
    torch.set_num_threads(1)
    sides: dict[str, Callable[[Any], Any]] = {"shared memory (us)": as_it_is, "pipe (us)": small_by_pipe}
    rows = []
    for size in options.kib:
        found: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(options.rounds):
            for name, send in sides.items():
                found[name].append(wait(size << 10, send))
        rows.append({"batch (KiB)": size, **{name: statistics.median(values) for name, values in found.items()}})
    show("A ready batch from a worker", rows, rounds=options.rounds, batches=BATCHES, limit=PIPE_BYTES)


if __name__ == "__main__":
    main()
