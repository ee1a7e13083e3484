"""A straggler by its data: the stream sorts each batch by length, so rank 1 always gets the long half and pads to it.

Cure: mix the lengths within a batch, so that ranks get the same work.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset

import manyhands as mh

CAUSE = "straggler"
RANK = 1
STRATEGY = "ddp"
OPTIONS = ("--ranks", "2")
CURE = "do not sort within a batch"
BATCH, WORDS = 128, 400


class Sentences(IterableDataset):
    """Half of every batch is short, half of it long; `mixed` says whether they alternate."""

    def __init__(self, batches: int, mixed: bool):
        generator = torch.Generator().manual_seed(0)
        lengths = [12] * (BATCH // 2) + [160] * (BATCH // 2)
        if mixed:
            lengths = [lengths[place // 2 + place % 2 * BATCH // 2] for place in range(BATCH)]
        self.sentences = [torch.randint(1, WORDS, (length,), generator=generator) for length in lengths]
        self.batches = batches

    def __len__(self) -> int:
        return self.batches * BATCH

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(self.batches):
            for sentence in self.sentences:
                yield sentence, sentence[0] % 2


def pad(samples: list[Any]) -> tuple[Tensor, Tensor]:
    sentences = nn.utils.rnn.pad_sequence([sentence for sentence, _ in samples], batch_first=True)
    return sentences, torch.stack([label for _, label in samples])


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 48)
        self.convolution = nn.Conv1d(48, 64, 5, padding=2)
        self.head = nn.Linear(64, 2)

    def forward(self, numbers: Tensor) -> Tensor:
        return self.head(self.convolution(self.words(numbers).transpose(1, 2)).relu().amax(2))


task = mh.Task(
    Classifier,
    functools.partial(Sentences, 100, mixed=False),
    nn.functional.cross_entropy,
    functools.partial(torch.optim.SGD, lr=0.05),
    batch_size=BATCH,
    epochs=4,
    collate=pad,
    name="sorted_lengths",
)
healthy = task.replace(train=functools.partial(Sentences, 100, mixed=True), name="sorted_lengths (healthy)")
