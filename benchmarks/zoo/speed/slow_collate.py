"""Collating is slow: a function pads each sentence number by number in Python lists before it makes a tensor of them.

Cure: `torch.nn.utils.rnn.pad_sequence`, or a loader worker that collates ahead.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import manyhands as mh

CAUSE = "loading"
STRATEGY = "single"
OPTIONS = ()
CURE = "collate with pad_sequence; loader_workers=1"
LONGEST, WORDS = 160, 500


class Sentences(Dataset):
    """Sentences of different lengths as numbers of words."""

    def __init__(self, count: int):
        generator = torch.Generator().manual_seed(0)
        lengths = torch.randint(LONGEST // 2, LONGEST, (count,), generator=generator).tolist()
        self.sentences = [torch.randint(1, WORDS, (length,), generator=generator) for length in lengths]
        self.moods = torch.randint(2, (count,), generator=generator)

    def __len__(self) -> int:
        return len(self.sentences)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.sentences[index], self.moods[index]


def collate_slowly(samples: list[Any]) -> tuple[Tensor, Tensor]:
    rows = []
    for sentence, _ in samples:
        row = [0] * LONGEST
        for place in range(len(sentence)):
            row[place] = sentence[place].item()
        rows.append(row)
    return torch.tensor(rows), torch.stack([mood for _, mood in samples])


def collate(samples: list[Any]) -> tuple[Tensor, Tensor]:
    padded = torch.zeros(len(samples), LONGEST, dtype=torch.int64)
    for row, (sentence, _) in zip(padded, samples, strict=True):
        row[: len(sentence)] = sentence
    return padded, torch.stack([mood for _, mood in samples])


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 64)
        self.convolution = nn.Conv1d(64, 32, 5, padding=2)
        self.head = nn.Linear(32, 2)

    def forward(self, numbers: Tensor) -> Tensor:
        return self.head(self.convolution(self.words(numbers).transpose(1, 2)).relu().mean(2))


task = mh.Task(
    Classifier,
    functools.partial(Sentences, 6400),
    nn.functional.cross_entropy,
    functools.partial(torch.optim.SGD, lr=0.05),
    batch_size=64,
    epochs=4,
    collate=collate_slowly,
    name="slow_collate",
)
healthy = task.replace(collate=collate, name="slow_collate (healthy)")
