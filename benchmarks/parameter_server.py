"""Claim: our synchronous parameter server trains LeNet at least 1.5 times as fast as one on torch RPC.

The same work on both sides, in turns: LeNet on `glyphs` images, 2 workers of 32 samples each, 1 server, SGD with
momentum, gradients of both workers summed, one update a step, one thread a process. The RPC side is what one
writes by hand (torch_sides.py): a worker sends its gradients in one call, the server answers the last one of the round
and all others with the new weights. A side's speed in a round is that of its median step.

    python benchmarks/parameter_server.py [--steps 300] [--rounds 5] [--data mnist]
"""

from __future__ import annotations

import argparse
import os
import statistics

import torch
from torch_sides import WARM_UP, by_torch

import manyhands as mh

WORKERS, SAMPLES = 2, 32


def task_of(name: str) -> mh.Task:
    return mh.load_task(name).replace(batch_size=WORKERS * SAMPLES, schedule=None, test=None, epochs=100)


def by_rpc(task: mh.Task, steps: int) -> float:
    """Samples a second of the RPC server."""
    return WORKERS * SAMPLES / by_torch(task, "parameter_server", WORKERS, steps).step_ms * 1000


def by_ours(task: mh.Task, steps: int, strategy: str) -> float:
    run = mh.fit(task, strategy, ranks=WORKERS, threads=1, max_steps=steps + WARM_UP, progress=False)
    assert run.step_ms is not None
    return WORKERS * SAMPLES / run.step_ms["median"] * 1000


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=300)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--data", default="glyphs:train=20000")
    chosen = options.parse_args()
    task = task_of(chosen.data)
    sides = {
        "torch RPC": lambda: by_rpc(task, chosen.steps),
        "parameter_server": lambda: by_ours(task, chosen.steps, "parameter_server"),
        "parameter_server:mode=async": lambda: by_ours(task, chosen.steps, "parameter_server:mode=async"),
        "parameter_server:over=network": lambda: by_ours(task, chosen.steps, "parameter_server:over=network"),
    }
    speeds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(chosen.rounds):
        for name, measure in sides.items():
            speeds[name].append(measure())
    print(f"samples/s, median of {chosen.rounds} rounds (torch {torch.__version__}, {os.cpu_count()} cores)")
    base = statistics.median(speeds["torch RPC"])
    for name, found in speeds.items():
        middle = statistics.median(found)
        print(f"{name:32} {middle:8.0f}   {middle / base:5.2f} x   ({min(found):.0f} to {max(found):.0f})")
    ratios = [ours / theirs for ours, theirs in zip(speeds["parameter_server"], speeds["torch RPC"], strict=True)]
    print(f"ratio of each round: {', '.join(f'{ratio:.2f}' for ratio in ratios)}; claimed: at least 1.5")


if __name__ == "__main__":
    main()
