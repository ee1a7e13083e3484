"""Claim: MobileNetV2 on 32x32 images, captured bf16 steps: 20,000 images/s at batch 128 and 32,000 at 1024 (one H200).

With crop, flip and cutout on our side; the plain loops and peers beside it get no augmentation at all. Images are random numbers
of CIFAR-10's shape: speed does not depend on what they show.

    python benchmarks/gpu_mobilenet.py [--rounds 3] [--batches 128 1024] [--compile]
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))
import gpu_peers
from tables import show

import manyhands as mh
from manyhands.data import augment
from manyhands.tasks import cifar10
from manyhands.tasks.models import mobilenetv2

AUGMENT = augment.Compose(augment.Crop(padding=4), augment.Flip(), augment.Cutout(size=8))


def data(count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=generator)
    return x, torch.randint(10, (count,), generator=generator)


class OnTheGpu:
    def __init__(self, batch: int, steps: int):
        self.batch = batch
        self.x, self.y = (part.cuda() for part in data(batch * steps))

    def __len__(self) -> int:
        return len(self.x) // self.batch

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for indices in torch.randperm(len(self.x), device="cuda").split(self.batch):
            yield self.x[indices], self.y[indices]


def ours(batch: int, steps: int, augmented: bool = True, **keywords: object) -> float:
    task = mh.Task(
        mobilenetv2, data(batch * steps), F.cross_entropy, cifar10.task.optimizer,
        batch_size=batch, augment=AUGMENT if augmented else None, name="mobilenetv2",
    )  # fmt: skip
    run = mh.fit(task, "single", epochs=2, device="cuda", progress=False, **keywords)  # type: ignore[arg-type]
    if keywords.get("capture") != "off":
        assert run.capture is not None
        assert run.capture["reason"] is None, run.capture
    return batch * steps / run.epochs[1]["seconds"]  # the first epoch begins with steps that choose kernels


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, nargs="+", default=[128, 1024])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    rows = []
    for batch in options.batches:
        steps = max(40, options.steps * 128 // batch) if batch > 128 else options.steps
        feed = OnTheGpu(batch, steps)

        def theirs(loop: Callable[..., float], *options: bool, batch: int = batch, feed: OnTheGpu = feed) -> float:
            make = functools.partial(torch.optim.SGD, lr=0.01, momentum=0.9, nesterov=True)
            return batch * loop(mobilenetv2(), make, F.cross_entropy, feed, *options)

        sides: dict[str, Callable[[], float]] = {
            "plain loop, fp32": lambda theirs=theirs: theirs(gpu_peers.plain_loop, False),
            "plain loop, bf16 channels_last": lambda theirs=theirs: theirs(gpu_peers.plain_loop, True),
            "manyhands fp32, capture=off, no augmentation": lambda b=batch, n=steps: ours(b, n, False, capture="off"),
            "manyhands fp32": lambda b=batch, n=steps: ours(b, n),
            "manyhands bf16": lambda b=batch, n=steps: ours(b, n, precision="bf16"),
        }
        if options.compile:
            sides["manyhands bf16, compile"] = lambda b=batch, n=steps: ours(b, n, precision="bf16", compile=True)
        for name, loop in gpu_peers.installed().items():
            sides[f"{name}, fp32"] = lambda theirs=theirs, loop=loop: theirs(loop)
        rates: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(options.rounds):
            for name, side in sides.items():
                rates[name].append(side())
        reference = statistics.median(rates["plain loop, fp32"])
        for name, values in rates.items():
            rows.append(
                {
                    "side": name,
                    "batch": batch,
                    "images/s (median)": statistics.median(values),
                    "lowest": min(values),
                    "highest": max(values),
                    "of plain fp32": statistics.median(values) / reference,
                }
            )
    show("MobileNetV2 (32x32) on one GPU: images per second", rows, rounds=options.rounds, steps=options.steps)


if __name__ == "__main__":
    main()
