"""How many augmented MNIST samples a second each way of loading gives, side by side.

    python benchmarks/loader.py                      a table, then the same as JSON
    python benchmarks/loader.py --json > loader.json

Every row does the published job: shuffled 28x28 images, each turned up to 10 degrees, shifted up to 10 %, scaled by
0.9 to 1.1 and sheared up to 10 degrees, as float32 batches. Ours is what a rank of `fit` runs: its batches, keys and
augmentation. The rows take turns, round after round, so that a slow moment of the machine falls on all of them; a figure
is the median of the rounds. All rows run in one process that keeps freed memory, as a rank does. Worker processes go on
filling their queues when their row's time is up, so a row begins when they have come to rest.

torchvision and kornia are measured where they are installed. Where torchvision is not, a stand-in does per sample what
its RandomAffine does: draw the numbers one by one and let PIL turn the image. It is labelled as such, and has none of
torchvision's own layers.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count

import numpy as np
import psutil
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from manyhands.data import augment, files
from manyhands.data.batches import Batches
from manyhands.data.order import Order, Shard
from manyhands.data.sources import TensorSource
from manyhands.world.launch.rank_process import keep_freed_memory

DEGREES, TRANSLATE, SCALE, SHEAR = 10.0, 0.1, (0.9, 1.1), 10.0
WARM_UP = 12  # batches before the clock starts, more than the loaders prefetch


# --- on whole batches ------------------------------------------------------------------------------------------------


def manyhands(images: Tensor, batch: int) -> Iterator[Tensor]:
    affine = augment.Affine(DEGREES, TRANSLATE, SCALE, SHEAR)
    source = TensorSource(images, torch.zeros(len(images), dtype=torch.int64))
    batches = Batches(source, Order(len(images), batch, seed=0), Shard(), keyed=True)
    for epoch in count():
        for made in batches.epoch(epoch):
            yield affine(made.input, made.keys)


def shuffled(samples: int, batch: int) -> Iterator[Tensor]:
    """The indices of one batch after another, for ever."""
    while True:
        yield from torch.randperm(samples).split(batch)[: samples // batch]


def kornia(images: Tensor, batch: int) -> Iterator[Tensor]:
    from kornia.augmentation import RandomAffine

    affine = RandomAffine(DEGREES, (TRANSLATE, TRANSLATE), SCALE, SHEAR, p=1.0)
    for indices in shuffled(len(images), batch):
        yield affine(images.index_select(0, indices).float().div_(255))


def plain_torch(images: Tensor, batch: int) -> Iterator[Tensor]:
    """What one writes in ten lines: theta from torch's generator, affine_grid, grid_sample."""
    for indices in shuffled(len(images), batch):
        turn = (torch.rand(batch) * 2 - 1) * math.radians(DEGREES)
        lean = torch.tan((torch.rand(batch) * 2 - 1) * math.radians(SHEAR))
        scale = SCALE[0] + torch.rand(batch) * (SCALE[1] - SCALE[0])
        shift = (torch.rand(batch, 2, 1) * 2 - 1) * 2 * TRANSLATE
        cos, sin = torch.cos(turn) / scale, torch.sin(turn) / scale
        rows = (torch.stack((cos + lean * sin, sin - lean * cos), 1), torch.stack((-sin, cos), 1))
        theta = torch.cat((torch.stack(rows, 1), shift), 2)
        values = images.index_select(0, indices).float().div_(255)
        grid = F.affine_grid(theta, list(values.shape), align_corners=False)
        yield F.grid_sample(values, grid, align_corners=False)


# --- sample by sample ------------------------------------------------------------------------------------------------


class PerSample(Dataset[Tensor]):
    """One image at a time through `transform`, as a torchvision data set does it."""

    def __init__(self, images: Tensor, transform: Callable[[object], Tensor]):
        self.images, self.transform = images.numpy(), transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Tensor:
        from PIL import Image

        return self.transform(Image.fromarray(self.images[index, 0]))


class AffineThroughPIL:
    """The stand-in for RandomAffine + ToTensor: same draws one by one, same matrix in Python, same PIL call."""

    def __call__(self, picture) -> Tensor:  # type: ignore[no-untyped-def]  # a PIL image; PIL may be absent
        from PIL import Image

        def between(low: float, high: float) -> float:
            return float(torch.empty(1).uniform_(low, high).item())

        width, height = picture.size
        turn = math.radians(between(-DEGREES, DEGREES))
        shift_x = round(between(-TRANSLATE * width, TRANSLATE * width))
        shift_y = round(between(-TRANSLATE * height, TRANSLATE * height))
        scale, lean = between(*SCALE), math.tan(math.radians(between(-SHEAR, SHEAR)))
        cos, sin = math.cos(turn) / scale, math.sin(turn) / scale
        a, b, c, d = cos + lean * sin, sin - lean * cos, -sin, cos
        x, y = width / 2, height / 2
        matrix = (a, b, x - a * (x + shift_x) - b * (y + shift_y), c, d, y - c * (x + shift_x) - d * (y + shift_y))
        turned = picture.transform(picture.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST)
        return torch.from_numpy(np.array(turned, np.uint8, copy=True)).unsqueeze(0).float().div(255)


def per_sample(images: Tensor, batch: int, workers: int, transform: Callable[[object], Tensor]) -> Iterator[Tensor]:
    loader = DataLoader(
        PerSample(images, transform),
        batch,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
    )
    while True:
        yield from loader


def torchvision_transform() -> Callable[[object], Tensor]:
    from torchvision import transforms

    affine = transforms.RandomAffine(DEGREES, (TRANSLATE, TRANSLATE), SCALE, SHEAR)
    return transforms.Compose([affine, transforms.ToTensor()])


OPERATORS = torch.library.Library("torchvision", "FRAGMENT")


def torchvision_works() -> bool:
    """Whether torchvision is there; one that was built for another torch will do.

    Its compiled operators do not load then, and the import trips over two of them that it wants to describe. Its
    transforms of PIL images are Python alone and do not miss them.
    """
    try:
        return installed("torchvision", "PIL")
    except RuntimeError:
        for name in ("nms", "qnms"):
            OPERATORS.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return installed("torchvision", "PIL")


# --- measuring -------------------------------------------------------------------------------------------------------


def installed(*names: str) -> bool:
    try:
        return all(importlib.import_module(name) for name in names)
    except ImportError:
        return False


def contenders(images: Tensor, batch: int) -> dict[str, Iterator[Tensor]]:
    rows = {"manyhands": manyhands(images, batch), "affine_grid + grid_sample": plain_torch(images, batch)}
    if installed("kornia"):
        rows["kornia RandomAffine, batched"] = kornia(images, batch)
    if torchvision_works():
        name, transform = "torchvision RandomAffine + DataLoader", torchvision_transform()
    elif installed("PIL"):
        name, transform = "stand-in for torchvision (PIL a sample) + DataLoader", AffineThroughPIL()
    else:
        return rows
    for workers in (0, 2):
        rows[f"{name}, {workers} workers"] = per_sample(images, batch, workers, transform)
    return rows


def rate(batches: Iterator[Tensor], seconds: float) -> float:
    """Samples a second over at least `seconds`."""
    for _ in range(WARM_UP):
        next(batches)
    samples, began = 0, time.perf_counter()
    while (took := time.perf_counter() - began) < seconds:
        samples += len(next(batches))
    return samples / took


def rest() -> None:
    """Return when no worker process computes any more."""

    def used() -> float:
        return sum(sum(child.cpu_times()[:2]) for child in psutil.Process().children(recursive=True))

    before = -1.0
    while (now := used()) > before:
        before = now
        time.sleep(0.05)


def measure(images: Tensor, batch: int, rounds: int, seconds: float) -> list[dict[str, object]]:
    rows = contenders(images, batch)
    found: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(rounds):
        for name, batches in rows.items():
            found[name].append(rate(batches, seconds))
            rest()
    ours = found["manyhands"]
    return [
        {
            "name": name,
            "batch_size": batch,
            "samples_per_second": round(statistics.median(rates)),
            "lowest": round(min(rates)),
            "highest": round(max(rates)),
            "manyhands_is_times": round(statistics.median(o / r for o, r in zip(ours, rates, strict=True)), 2),
            "rounds": [round(r) for r in rates],
        }
        for name, rates in found.items()
    ]


def environment(threads: int) -> dict[str, object]:
    model = platform.processor() or platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo") as file:
            model = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), model)
    names = [name for name in ("torchvision", "kornia", "pillow") if installed("PIL" if name == "pillow" else name)]
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "threads": threads,
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        **{name: version(name) for name in names},
    }


def version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def some_images() -> tuple[Tensor, str]:
    try:
        return files.mnist()[0][0], "mnist"
    except files.DataNotFound:
        return torch.randint(0, 256, (60_000, 1, 28, 28), dtype=torch.uint8), "random bytes of MNIST's shape"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, nargs="+", default=[32, 256])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.4, help="per row and round")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", action="store_true", help="only the JSON on standard output")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    images, data = some_images()
    rows = [row for batch in options.batch_size for row in measure(images, batch, options.rounds, options.seconds)]
    table = sys.stderr if options.json else sys.stdout
    print(f"{'batch':>5}  {'samples/s':>9}  {'lowest':>8}  {'highest':>8}  {'manyhands is':>12}", file=table)
    for row in rows:
        figures = f"{row['batch_size']:5}  {row['samples_per_second']:9,}  {row['lowest']:8,}  {row['highest']:8,}"
        print(f"{figures}  {row['manyhands_is_times']:11.2f}x  {row['name']}", file=table)
    record = {"data": data, "rounds": options.rounds, "seconds_per_round": options.seconds}
    print(json.dumps({**record, "environment": environment(options.threads), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
