"""A Dataset with a Generator of its own: what it gives for an index depends on how much was read before.

Cure: draw from the global generators, which are seeded for each sample, or from one seeded by the index.
"""

from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import manyhands as mh

CAUSE = "data"
STRATEGY = "ddp"
OPTIONS = ("--ranks", "2")
CURE = "a generator that is seeded by the index"

INPUTS = torch.randn(256, 12, generator=torch.Generator().manual_seed(1))
LABELS = torch.randint(0, 4, (256,), generator=torch.Generator().manual_seed(2))


class Noisy(Dataset):
    def __init__(self, own: bool):
        self.generator = torch.Generator().manual_seed(7) if own else None

    def __len__(self) -> int:
        return len(INPUTS)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return INPUTS[index] + 0.1 * torch.randn(12, generator=self.generator), LABELS[index]


def make(own: bool) -> mh.Task:
    return mh.Task(
        model=lambda: nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 4)),
        train=Noisy(own),
        loss=nn.functional.cross_entropy,
        optimizer=partial(torch.optim.SGD, lr=0.1),
        batch_size=16,
        epochs=2,
    )


task, healthy = make(True), make(False)
