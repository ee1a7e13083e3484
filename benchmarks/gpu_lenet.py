"""Claim: on a GPU a small model's captured steps are at least 8 times a plain loop's, and uncaptured ones no slower.

LeNet on 28x28 images, batch 32, SGD with momentum, no augmentation. The other sides get batches that are already on
the GPU, gathered by index there: the friendliest loop that people write. Sides take turns, round after round.

    python benchmarks/gpu_lenet.py [--rounds 3] [--steps 1000]
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))
import gpu_peers
from loop_overhead import BATCH, loss_of, make_data, make_model, make_optimizer
from tables import show

import manyhands as mh


class OnTheGpu:
    """Batches of data that lives on the GPU, as a loop written by hand has them."""

    def __init__(self, steps: int):
        self.x, self.y = (part.cuda() for part in make_data(steps))

    def __len__(self) -> int:
        return len(self.x) // BATCH

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for indices in torch.randperm(len(self.x), device="cuda").split(BATCH):
            yield self.x[indices], self.y[indices]


def with_manyhands(steps: int, capture: str) -> float:
    task = mh.Task(make_model, make_data(steps), loss_of, make_optimizer, batch_size=BATCH, name="lenet")
    run = mh.fit(task, "single", epochs=2, device="cuda", capture=capture, progress=False)
    assert capture == "off" or (run.capture is not None and run.capture["reason"] is None), run.capture
    return steps / run.epochs[1]["seconds"]  # the first epoch begins with steps that choose kernels


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1000)
    options = parser.parse_args()
    batches = OnTheGpu(options.steps)
    sides: dict[str, Callable[[], float]] = {
        "plain loop": lambda: gpu_peers.plain_loop(make_model(), make_optimizer, loss_of, batches),
        "manyhands, capture=off": lambda: with_manyhands(options.steps, "off"),
        "manyhands": lambda: with_manyhands(options.steps * 5, "auto"),
    }
    for name, side in gpu_peers.installed().items():
        sides[name] = functools.partial(side, make_model(), make_optimizer, loss_of, batches)
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(options.rounds):
        for name, measured in sides.items():
            rates[name].append(measured())
    plain = statistics.median(rates["plain loop"])
    rows = [
        {
            "side": name,
            "steps/s (median)": statistics.median(values),
            "lowest": min(values),
            "highest": max(values),
            "of the plain loop": statistics.median(values) / plain,
        }
        for name, values in rates.items()
    ]
    show("LeNet, batch 32, on one GPU: steps per second", rows, rounds=options.rounds, steps=options.steps)


if __name__ == "__main__":
    main()
