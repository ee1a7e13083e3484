"""Claim: the published MNIST job (LeNet, batch 32, random affine, 10 epochs) trains in at most 3 s on one H200.

The usual way beside it, one epoch of it: torchvision's RandomAffine sample by sample in DataLoader workers, and the
same loop with batches augmented whole on the GPU. MANYHANDS_DATA must point at the data.

    MANYHANDS_DATA=... python benchmarks/gpu_mnist.py [--rounds 3] [--workers 4]
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

sys.path.insert(0, str(Path(__file__).parent))
import gpu_peers
from tables import show

import manyhands as mh
from manyhands.tasks import mnist
from manyhands.tasks.models import lenet

EPOCHS = 10


class PerSample(Dataset):
    """The published way: one image at a time through torchvision."""

    def __init__(self) -> None:
        from torchvision import transforms

        self.images, self.labels = mnist.images("train")
        self.transform = transforms.Compose(
            [
                transforms.ToPILImage(),
                transforms.RandomAffine(10, translate=(0.07, 0.07), scale=(0.9, 1.1), shear=5),
                transforms.ToTensor(),
            ]
        )

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.transform(self.images[index]), int(self.labels[index])


class WholeBatches:
    """Batches gathered and augmented on the GPU, without capture."""

    def __init__(self) -> None:
        self.x, self.y = (part.cuda() for part in mnist.images("train"))

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for indices in torch.randperm(len(self.x), device="cuda").split(32):
            keys = mh.augment.sample_keys(0, 0, indices)
            yield mnist.AFFINE(self.x[indices], keys), self.y[indices]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=4)
    options = parser.parse_args()
    task = dataclasses.replace(mnist.task, epochs=EPOCHS)
    steps = 60_000 // 32
    rows: list[dict[str, Any]] = []

    def other(name: str, batches: Any) -> None:
        model = lenet(mean=0.1307, std=0.3081)
        rate = gpu_peers.plain_loop(model, task.optimizer, F.cross_entropy, batches)  # type: ignore[arg-type]
        rows.append(_row(name, "1 of 10", steps / rate, steps / rate * EPOCHS, None, None))

    if importlib.util.find_spec("torchvision"):
        for workers in (options.workers,):
            loader = DataLoader(PerSample(), 32, shuffle=True, num_workers=workers, pin_memory=True)
            other(f"plain loop, torchvision, {workers} workers", loader)
    other("plain loop, whole batches on the GPU", WholeBatches())
    runs = [mh.fit(task, "single", device="cuda", progress=False) for _ in range(options.rounds)]
    for run in runs:
        assert run.capture is not None
        assert run.capture["reason"] is None, run.capture
    seconds = [run.seconds or 0.0 for run in runs]
    median = runs[seconds.index(statistics.median_low(seconds))]
    whole = [(run.seconds or 0) + (run.startup_seconds or 0) + (run.evaluation_seconds or 0) for run in runs]
    accuracy = min(run.test["accuracy"] for run in runs if run.test)
    rows.append(
        _row(
            "manyhands (median)",
            "10",
            (median.seconds or 0) / EPOCHS,
            median.seconds or 0,
            statistics.median(whole),
            accuracy,
        )
    )
    show(
        "MNIST, LeNet, batch 32, random affine, 10 epochs on one GPU",
        rows,
        rounds=options.rounds,
        seconds=seconds,
        with_start_and_evaluation=whole,
        accuracies=[run.test["accuracy"] for run in runs if run.test],
        startup_seconds=[run.startup_seconds for run in runs],
        evaluation_seconds=[run.evaluation_seconds for run in runs],
        capture=runs[0].capture,
        phases_ms=runs[0].phases_ms,
    )


def _row(
    side: str, epochs: str, each: float, ten: float, whole: float | None, accuracy: float | None
) -> dict[str, Any]:
    return {
        "side": side,
        "epochs run": epochs,
        "s an epoch": each,
        "s of training for 10": ten,
        "with start-up and tests": "-" if whole is None else whole,
        "lowest accuracy": "-" if accuracy is None else f"{accuracy:.2%}",
    }


if __name__ == "__main__":
    main()
