"""Channels last on CPU: what single layers gain or lose, and whole models; and whether `fit` would choose it.

One process, forward and backward, both layouts in turn; medians of the rounds. The costs in
src/manyhands/model/layout.py are rounded from measurements such as the first table's, by element and by product.

    python benchmarks/layout.py [--rounds 7] [--samples 32] [--threads 1]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from loop_overhead import make_model
from tables import show
from torch import Tensor, nn

from manyhands.model.layout import channels_last_may_pay, channels_last_pays, lay_channels_last
from manyhands.tasks.models import mobilenetv2
from manyhands.world.launch.rank_process import keep_freed_memory

LAST = torch.channels_last
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, int, int]]] = {
    "convolution 1 > 6, 5x5": (lambda: nn.Conv2d(1, 6, 5), (1, 28, 28)),
    "convolution 6 > 16, 5x5": (lambda: nn.Conv2d(6, 16, 5), (6, 12, 12)),
    "convolution 32 > 32, 3x3": (lambda: nn.Conv2d(32, 32, 3, padding=1), (32, 32, 32)),
    "convolution 64 > 128, 3x3, stride 2": (lambda: nn.Conv2d(64, 128, 3, stride=2, padding=1), (64, 16, 16)),
    "convolution 32 > 96, 1x1": (lambda: nn.Conv2d(32, 96, 1), (32, 30, 30)),
    "convolution of each of 96 channels": (lambda: nn.Conv2d(96, 96, 3, padding=1, groups=96), (96, 32, 32)),
    "convolution 32 > 32 in 4 groups": (lambda: nn.Conv2d(32, 32, 3, groups=4), (32, 32, 32)),
    "transposed convolution 32 > 16": (lambda: nn.ConvTranspose2d(32, 16, 3, stride=2), (32, 15, 15)),
    "MaxPool2d(2)": (lambda: nn.MaxPool2d(2), (32, 32, 32)),
    "AvgPool2d(2)": (lambda: nn.AvgPool2d(2), (32, 32, 32)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(32), (32, 32, 32)),
    "GroupNorm": (lambda: nn.GroupNorm(8, 32), (32, 32, 32)),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(32), (32, 32, 32)),
    "mean of each image (AdaptiveAvgPool2d)": (lambda: nn.AdaptiveAvgPool2d(1), (96, 30, 30)),
    "Flatten": (lambda: nn.Flatten(), (32, 15, 15)),
    "Upsample, bilinear": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), (16, 16, 16)),
    "ReLU": (lambda: nn.ReLU(), (32, 32, 32)),
}


def plain_convolutions() -> nn.Module:
    """Three convolutions with pooling between them."""
    layers: list[nn.Module] = []
    for before, after in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 16, 10))


class Block(nn.Module):
    def __init__(self, channels: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1), norm(channels), nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1), norm(channels),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.inner(x)).relu()


def residual(norm: Callable[[int], nn.Module]) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), Block(32, norm), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1),
        Block(64, norm), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


def one_by_one() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 96, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(96, 10),
    )  # fmt: skip


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, int, int]]] = {
    "LeNet": (make_model, (1, 28, 28)),
    "3 convolutions, MaxPool2d": (plain_convolutions, (3, 32, 32)),
    "residual, BatchNorm2d": (lambda: residual(nn.BatchNorm2d), (3, 32, 32)),
    "residual, GroupNorm": (lambda: residual(lambda channels: nn.GroupNorm(8, channels)), (3, 32, 32)),
    "MobileNetV2 of the task cifar10": (mobilenetv2, (3, 32, 32)),
    "a 1x1 convolution and a mean": (one_by_one, (3, 32, 32)),
}


def lay_last(images: Tensor) -> Tensor:
    return torch.empty_like(images, memory_format=LAST).copy_(images)


def of_layer(make: Callable[[], nn.Module], images: Tensor, last: bool) -> Callable[[], None]:
    layer = make()
    input = (lay_last(images) if last else images).requires_grad_()
    output = layer(input)
    gradient = torch.randn(output.shape)
    gradient = lay_last(gradient) if last and output.dim() == 4 else gradient

    def run() -> None:
        layer(input).backward(gradient)

    return run


def of_model(make: Callable[[], nn.Module], images: Tensor, last: bool) -> Callable[[], None]:
    torch.manual_seed(0)
    model = lay_channels_last(make()) if last else make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    target = torch.randint(10, (len(images),))

    def run() -> None:
        loss = nn.functional.cross_entropy(model(images), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return run


def compare(first: Callable[[], None], last: Callable[[], None], rounds: int) -> tuple[float, float, float]:
    """Milliseconds of either, and the median of the rounds' ratios."""
    found: list[tuple[float, float]] = []
    for number in range(rounds + 1):
        pair = []
        for side in (first, last):
            began = time.perf_counter()
            for _ in range(3):
                side()
            pair.append((time.perf_counter() - began) / 3 * 1000)
        if number:  # the first warms up
            found.append((pair[0], pair[1]))
    a, b = zip(*found, strict=True)
    return statistics.median(a), statistics.median(b), statistics.median(y / x for x, y in found)


def chosen(make: Callable[[], nn.Module], images: Tensor) -> bool:
    target = torch.zeros(2, dtype=torch.int64)
    model = make()
    return channels_last_may_pay(model) and channels_last_pays(
        model, lambda model: nn.functional.cross_entropy(model(images[:2]), target)
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    torch.manual_seed(0)
    for title, cases, side in (("layers", LAYERS, of_layer), ("models, whole steps", MODELS, of_model)):
        rows = []
        for name, (make, shape) in cases.items():
            images = torch.randn(options.samples, *shape)
            first, last, ratio = compare(side(make, images, False), side(make, images, True), options.rounds)
            row = {title: name, "channels first, ms": first, "last, ms": last, "last against first": ratio}
            rows.append({**row, "fit takes": "last" if chosen(make, images) else "first"} if cases is MODELS else row)
        show(f"{title}: {options.samples} samples, {options.threads} thread(s), {options.rounds} rounds", rows)


if __name__ == "__main__":
    main()
