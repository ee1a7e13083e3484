"""Reading computes: every sample is unpacked and decoded in Python before it can be used, in the process that trains.

Cure: loader workers, as many as there are cores to spare; or decode once and keep the result.
"""

from __future__ import annotations

import functools
import zlib

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import manyhands as mh

CAUSE = "loading"
STRATEGY = "single"
OPTIONS = ()
CURE = "loader_workers=2, or decode once and keep the result"


class Recordings(Dataset):
    """Short signals, kept compressed or ready to use."""

    def __init__(self, count: int, compressed: bool):
        generator = torch.Generator().manual_seed(0)
        self.signals = torch.randint(-100, 100, (count, 1, 512), generator=generator, dtype=torch.int8)
        self.labels = torch.randint(5, (count,), generator=generator)
        self.packed = [zlib.compress(row.numpy().tobytes(), 9) for row in self.signals] if compressed else None

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if self.packed is None:
            return self.signals[index].float() / 100, self.labels[index]
        content = zlib.decompress(self.packed[index])
        level, decoded = 0.0, []
        for byte in content * 8:  # a predictive code: each value from the last one
            level = 0.5 * level + (byte - 128) / 200
            decoded.append(level)
        return torch.tensor(decoded[-512:]).reshape(1, 512), self.labels[index]


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(1, 24, 9, padding=4), nn.ReLU(), nn.MaxPool1d(4),
        nn.Conv1d(24, 48, 9, padding=4), nn.ReLU(), nn.AdaptiveAvgPool1d(4),
        nn.Flatten(), nn.Linear(192, 5),
    )  # fmt: skip


task = mh.Task(
    make_model,
    functools.partial(Recordings, 6400, compressed=True),
    nn.functional.cross_entropy,
    functools.partial(torch.optim.SGD, lr=0.05),
    batch_size=64,
    epochs=4,
    name="computing_loader",
)
healthy = task.replace(train=functools.partial(Recordings, 6400, compressed=False), name="computing_loader (healthy)")
