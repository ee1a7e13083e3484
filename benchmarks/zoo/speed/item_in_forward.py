"""Nothing is wrong: `.item()` in the forward pass stops a GPU, but costs nothing on a CPU.

A tool that knows rules of thumb blames it; one that measures does not.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

import manyhands as mh

CAUSE = "none"
STRATEGY = "single"
OPTIONS = ("--device", "cpu")
CURE = "nothing to gain"


def make_data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(12800, 1, 28, 28, generator=generator), torch.randint(10, (12800,), generator=generator)


class Watch(nn.Module):
    """Looks at the largest activation of every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0.0

    def forward(self, x: Tensor) -> Tensor:
        self.largest = x.detach().max().item()
        return x


def make_model(watch: type[nn.Module] = Watch) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2), watch(),
        nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2), watch(), nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip


task = mh.Task(
    make_model,
    make_data,
    nn.functional.cross_entropy,
    functools.partial(torch.optim.SGD, lr=0.05),
    batch_size=128,
    epochs=4,
    name="item_in_forward",
)
healthy = task.replace(model=functools.partial(make_model, nn.Identity), name="item_in_forward (healthy)")
