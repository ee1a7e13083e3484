"""Claim to be measured: images per second of `fit` on ResNet-50 at 224x224, bf16, against the best loop by hand.

SGD with Nesterov momentum, weight decay on everything, channels last on both sides. Images are random bytes in memory, on the GPU
where they are used: what a loader could deliver is another question (benchmarks/loader.py).

    python benchmarks/gpu_resnet50.py [--rounds 3] [--batch 256] [--steps 20] [--device cuda] [--no-compile] [--smoke]

`--device cpu --smoke` shows in a minute that both sides run; its figures mean nothing.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))
from gpu_sides import Side, by_hand, fitted, measure, parameters

import manyhands as mh
from manyhands.tasks.models import Normalise, resnet50

CLASSES = 1000


def network(width: float = 1.0) -> nn.Sequential:
    """The package's ResNet-50 with the beginning that it has for photographs: 7x7, two strides, and pooling."""
    model = resnet50(width=width, classes=CLASSES)
    channels = model[1].branch[0][0].in_channels
    model[0] = nn.Sequential(
        Normalise(0.45, 0.225),
        nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1),
    )
    return model


def images(count: int, side: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8, generator=generator)
    return x, torch.randint(CLASSES, (count,), generator=generator)


def task_of(batch: int, steps: int, side: int, width: float) -> mh.Task:
    return mh.Task(
        partial(network, width), partial(images, batch * steps, side), F.cross_entropy,
        partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4),
        batch_size=batch, name="resnet50",
    )  # fmt: skip


def sides(task: mh.Task, device: str, compiled: bool) -> dict[str, Side]:
    hand, ours = partial(by_hand, task, device, channels_last=True), partial(fitted, task, device)
    found: dict[str, Side] = {"by hand": hand, "manyhands": ours}
    if device == "cuda":
        found["by hand, CUDA graph"] = partial(hand, graph=True)
        found["manyhands, capture=off"] = partial(ours, capture="off")
    if compiled:
        found["by hand, compile"] = partial(hand, compile=True)
        found["manyhands, compile"] = partial(ours, compile=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--smoke", action="store_true", help="a few steps of a narrow network on 32x32, not compiled")
    options = parser.parse_args()
    batch, steps, rounds, side, width = (
        (4, 3, 1, 32, 0.125) if options.smoke else (options.batch, options.steps, options.rounds, 224, 1.0)
    )
    task = task_of(batch, steps, side, width)
    compiled = not (options.no_compile or options.smoke)
    measure(
        f"ResNet-50 ({parameters(task.model()):,} parameters), {batch} images of {side}x{side}, bf16: images per second",
        sides(task, options.device, compiled), rounds, "images", steps=steps, batch=batch, device=options.device,
    )  # fmt: skip


if __name__ == "__main__":
    main()
