"""Claim: what the recipes of `cifar10` reach in short fits, and what the changes that were considered would gain.

Short fits (captured bf16 steps on one GPU), one after another in the order given, one line each as it ends. None is
started that would not end within --seconds, going by the last three; a fit that fails is a line, too.

    python benchmarks/cifar_recipes.py [--epochs 12] [--seconds 290] [--trials NAME...] [--list]
    python benchmarks/cifar_recipes.py --device cpu --steps 2       # does every trial run at all?
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

import manyhands as mh
from manyhands.data import augment
from manyhands.tasks import cifar10


def train_images() -> torch.Tensor:
    return cifar10.images("train")[0]


@dataclass(frozen=True)
class Trial:
    options: str
    batch: int = 512
    clip: float | None = None
    change: Mapping[str, Any] = field(default_factory=dict)  # fields of the task

    def task(self) -> mh.Task:
        return mh.load_task(f"cifar10:{self.options}", self.batch).replace(eval_batch_size=1000, **self.change)


MIRRORED = (augment.Crop(padding=4, reflect=True), augment.Flip(), augment.Cutout(size=8))
MIXED = augment.Compose(augment.Mixup(train_images, 0.2), *MIRRORED)

TRIALS: dict[str, Trial] = {  # in order of importance
    "group": Trial("norm=group", clip=1.0),
    "none": Trial("norm=none", clip=1.0),
    "batch, mirrored crop, averaged weights": Trial("", change={"augment": augment.Compose(*MIRRORED), "ema": 0.998}),
    "batch 2048, half the rate": Trial("rate=0.05", 2048),
    "batch, mirrored crop, mixup 0.2, averaged": Trial("", change={"augment": MIXED, "ema": 0.998}),
    "none, twice the rate": Trial("norm=none,rate=0.002", clip=1.0),
    "group, twice the rate": Trial("norm=group,rate=0.002", clip=1.0),
    "batch 2048": Trial("", 2048),
    "none, batch 128": Trial("norm=none", 128, clip=1.0),
    "none, not clipped": Trial("norm=none"),
    "published": Trial("recipe=published"),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=290)
    parser.add_argument("--trials", nargs="+", default=list(TRIALS), choices=list(TRIALS), metavar="NAME")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.list:
        print("\n".join(TRIALS))
        return
    begin, took = time.perf_counter(), [0.0]
    for name in options.trials:
        left = options.seconds - (time.perf_counter() - begin)
        if left < max(took[-3:]):
            print(f"not started for want of time ({left:.0f} s left): {name}", flush=True)
            continue
        start = time.perf_counter()
        print(outcome(name, options), flush=True)
        took.append(time.perf_counter() - start)


def outcome(name: str, options: argparse.Namespace) -> str:
    """The line of a trial."""
    trial, start = TRIALS[name], time.perf_counter()
    try:
        run = mh.fit(
            trial.task(), "single", device=options.device, precision="bf16" if options.device == "cuda" else "fp32",
            clip=trial.clip, epochs=options.epochs, max_steps=options.steps, eval_every=options.epochs, progress=False,
        )  # fmt: skip
    except Exception as problem:
        return f"{name} | FAILED after {time.perf_counter() - start:.0f} s: {type(problem).__name__}: {problem}"
    tail = [loss for loss in run.losses[-50:] if loss is not None]
    averaged = f" (averaged weights {run.ema['test']['accuracy']:.2%})" if run.ema else ""
    words = [
        f"{run.test['accuracy']:.2%}{averaged}",
        f"train loss {sum(tail) / len(tail):.3f}",
        f"{time.perf_counter() - start:.0f} s ({run.samples_per_second:,.0f} images/s, {options.epochs} epochs at {trial.batch})",
    ]
    if run.capture and run.capture["reason"]:
        words.append(f"NOT CAPTURED: {run.capture['reason']}")
    return " | ".join([name, *words])


if __name__ == "__main__":
    main()
