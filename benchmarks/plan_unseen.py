"""Ten jobs on which nothing of `plan` was tuned: `python -m benchmarks.plan --unseen` plans, compares and scores them.

Images, sound, sequences, tables and pairs of keys; steps of 0.1 to 70 ms; SGD, momentum, Adam and AdamW.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import manyhands as mh

sgd, momentum = functools.partial(torch.optim.SGD, lr=0.1), functools.partial(torch.optim.SGD, lr=0.01, momentum=0.9)
adam, adamw = functools.partial(torch.optim.Adam, lr=1e-3), functools.partial(torch.optim.AdamW, lr=1e-3)


def drawn(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise(count: int, *shape: int, classes: int) -> tuple[Tensor, Tensor]:
    generator = drawn(0)
    return torch.randn(count, *shape, generator=generator), torch.randint(classes, (count,), generator=generator)


class Residual(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.GroupNorm(4, channels)

    def forward(self, images: Tensor) -> Tensor:
        return F.relu(images + self.second(F.relu(self.norm(self.first(images)))))


def residual() -> mh.Task:
    def model() -> nn.Module:
        blocks = [Residual(32), nn.MaxPool2d(2), Residual(32), nn.MaxPool2d(2), Residual(32)]
        head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)]
        return nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), *blocks, *head)

    return mh.Task(model, noise(2048, 3, 32, 32, classes=10), F.cross_entropy, adam, batch_size=64)


class VisionTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 96, 4, 4)
        self.places = nn.Parameter(torch.zeros(1, 64, 96))
        self.blocks = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(96, 4, 192, batch_first=True, dropout=0.0), 4, enable_nested_tensor=False
        )
        self.head = nn.Linear(96, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.blocks(self.patches(images).flatten(2).transpose(1, 2) + self.places).mean(1))


def vision_transformer() -> mh.Task:
    return mh.Task(VisionTransformer, noise(1024, 3, 32, 32, classes=10), F.cross_entropy, adamw, batch_size=32)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.GRU(16, 64, 2, batch_first=True), nn.Linear(64, 1)

    def forward(self, series: Tensor) -> Tensor:
        return self.head(self.cells(series)[0][:, -1])


def recurrent() -> mh.Task:
    series = torch.randn(4096, 40, 16, generator=drawn(1))
    return mh.Task(Recurrent, (series, series.mean((1, 2))[:, None]), F.mse_loss, momentum, batch_size=64)


def autoencoder() -> mh.Task:
    def model() -> nn.Module:
        encoder = [nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 32), nn.ReLU()]
        return nn.Sequential(*encoder, nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 784), nn.Sigmoid())

    images = torch.rand(4096, 784, generator=drawn(2))
    return mh.Task(model, (images, images), F.mse_loss, adam, batch_size=128)


class Recommender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users, self.films = nn.Embedding(20_000, 32), nn.Embedding(20_000, 32)
        self.score = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, pairs: Tensor) -> Tensor:
        return self.score(torch.cat([self.users(pairs[:, 0]), self.films(pairs[:, 1])], 1)).squeeze(1)


def recommender() -> mh.Task:
    generator = drawn(3)
    pairs = torch.randint(20_000, (16_384, 2), generator=generator)
    return mh.Task(Recommender, (pairs, torch.rand(16_384, generator=generator)), F.mse_loss, sgd, batch_size=256)


def logistic() -> mh.Task:
    return mh.Task(lambda: nn.Linear(64, 3), noise(8192, 64, classes=3), F.cross_entropy, sgd, batch_size=32)


def wide() -> mh.Task:
    def model() -> nn.Module:
        layers = [nn.Linear(1024, 2048), nn.Tanh(), nn.Linear(2048, 2048), nn.Tanh(), nn.Linear(2048, 10)]
        return nn.Sequential(*layers)

    return mh.Task(model, noise(2048, 1024, classes=10), F.cross_entropy, momentum, batch_size=64)


def sound() -> mh.Task:
    def model() -> nn.Module:
        first = [nn.Conv1d(1, 32, 80, 4), nn.BatchNorm1d(32), nn.ReLU(), nn.MaxPool1d(4)]
        second = [nn.Conv1d(32, 64, 3), nn.BatchNorm1d(64), nn.ReLU(), nn.MaxPool1d(4), nn.Conv1d(64, 64, 3), nn.ReLU()]
        return nn.Sequential(*first, *second, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(64, 12))

    return mh.Task(model, noise(1024, 1, 4000, classes=12), F.cross_entropy, momentum, batch_size=32)


class Skipping(nn.Module):
    """Down and up again, with a way around."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.down = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, 2, 1)
        self.middle, self.up = nn.Conv2d(32, 32, 3, padding=1), nn.ConvTranspose2d(32, 16, 2, 2)
        self.head = nn.Conv2d(32, 1, 1)

    def forward(self, images: Tensor) -> Tensor:
        wide = F.relu(self.wide(images))
        deep = F.relu(self.middle(F.relu(self.down(wide))))
        return self.head(torch.cat([self.up(deep), wide], 1))


def segments() -> mh.Task:
    images = torch.rand(512, 1, 48, 48, generator=drawn(7))
    loss = F.binary_cross_entropy_with_logits
    return mh.Task(Skipping, (images, (images > 0.5).float()), loss, adam, batch_size=16)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(5000, 64), nn.Linear(64, 4)
        self.attention = nn.MultiheadAttention(64, 4, batch_first=True)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        words = self.words(ids)
        seen = self.attention(words, words, words, key_padding_mask=~mask, need_weights=False)[0]
        return self.head((seen * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))


def padded() -> mh.Task:
    generator = drawn(8)
    lengths = torch.randint(5, 40, (2048, 1), generator=generator)
    ids = torch.randint(5000, (2048, 40), generator=generator)
    data = {"ids": ids, "mask": torch.arange(40)[None] < lengths}, torch.randint(4, (2048,), generator=generator)
    return mh.Task(Attention, data, F.cross_entropy, adam, batch_size=32, call="kwargs")


UNSEEN: dict[str, tuple[Callable[[], mh.Task], int]] = {  # and the steps of a job: those of a second or so, on two cores
    "residual": (residual, 40), "vision_transformer": (vision_transformer, 40), "recurrent": (recurrent, 100),
    "autoencoder": (autoencoder, 200), "recommender": (recommender, 1500), "logistic": (logistic, 5000), "wide": (wide, 60),
    "sound": (sound, 80), "segments": (segments, 80), "padded": (padded, 200),
}  # fmt: skip
