"""Models nobody here prepared: under strategies that cut models or split batches they train as under `single`, or are
refused before the start with the true reason."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.strategies.unprepared import (
    CLASSES,
    FEATURES,
    Net,
    both_kinds,
    check,
    images,
    numbers,
    task_of,
    tokens,
)


class Experts(nn.Module):
    """Mixtral: tokens sorted to their expert by index, and put back by a write into a fresh tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.front, self.gate = nn.Linear(FEATURES, 12), nn.Linear(12, 3)
        self.experts = nn.ModuleList([nn.Linear(12, 12) for _ in range(3)])
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.front(x))
        weight, chosen = self.gate(hidden).softmax(1).max(1)
        order = torch.argsort(chosen)
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(order.shape[0])
        mixed = torch.zeros_like(hidden)
        for number, expert in enumerate(self.experts):
            mixed += expert(hidden[order]) * (chosen[order] == number)[:, None]
        return self.head(mixed[inverse] * weight[:, None])


class EncoderDecoder(nn.Module):
    """T5: one embedding for the encoder, the decoder and the head."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Embedding(11, 8)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.decoder = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.shared.weight
        self.classes = nn.Linear(11, CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        memory = self.encoder(self.shared(words))
        decoded = self.decoder(self.shared(words.flip(1)), memory)
        return self.classes(torch.tanh(self.head(decoded)).mean(1))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 6, 3, padding=1)
        self.middle = nn.Conv2d(6, 6, 3, padding=1)
        self.up = nn.ConvTranspose2d(6, 4, 2, stride=2)
        self.out, self.head = nn.Conv2d(8, 2, 1), nn.Linear(2, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        first = F.relu(self.down1(x))
        second = F.relu(self.down2(F.max_pool2d(first, 2)))
        joined = torch.cat([first, self.up(F.relu(self.middle(second)))], 1)
        return self.head(self.out(joined).mean((2, 3)))


class Spectral(nn.Module):
    """Complex layers: gradients of their weights need conjugates, and a conjugate view crosses the cut."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(9, 12, dtype=torch.cfloat)
        self.b = nn.Conv1d(1, 2, 3, padding=1, dtype=torch.cfloat)
        self.head = nn.Linear(24, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        turned = self.a(torch.fft.rfft(x)).conj()
        return self.head(self.b(turned[:, None]).flatten(1).abs())


class Branches(nn.Module):
    """A choice per sample, a layer used twice and frozen parts at both ends."""

    def __init__(self) -> None:
        super().__init__()
        self.front, self.again = nn.Linear(FEATURES, 8).requires_grad_(False), nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.ones(8))
        self.head = nn.Linear(8, CLASSES)
        self.head.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.again(self.front(x)) * self.scale
        hidden = torch.where(hidden > 0, hidden, 0.1 * self.again(hidden))
        return self.head(hidden * self.scale)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm, self.head = (
            nn.Embedding(11, 8),
            nn.LSTM(8, 8, 2, batch_first=True),
            nn.Linear(8, CLASSES),
        )

    def forward(self, words: Tensor) -> Tensor:
        _, (last, _) = self.lstm(self.embed(words))
        return self.head(last[-1])


class Checkpointed(Net):
    """Activations made again in the backward pass, by both of torch's ways."""

    def forward(self, x: Tensor) -> Any:
        hidden = checkpoint(lambda v: torch.tanh(self.a(v)), x.clone().requires_grad_(), use_reentrant=True)
        return checkpoint(self.b, hidden, use_reentrant=False)


KINDS = {
    "experts": (Experts, numbers),
    "encoder_decoder": (EncoderDecoder, tokens),
    "unet": (UNet, images),
    "spectral": (Spectral, numbers),
    "branches": (Branches, numbers),
    "lstm": (Recurrent, tokens),
    "checkpointed": (Checkpointed, numbers),
}


@both_kinds
@pytest.mark.parametrize("kind", KINDS)
def test_they_train_as_under_single(kind: str, strategies: tuple[str, ...]) -> None:
    model, data = KINDS[kind]
    check(task_of(model, data()), *strategies)


# ---------------------------------------------------------------- nests keep their types
