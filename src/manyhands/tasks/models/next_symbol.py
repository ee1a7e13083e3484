"""Guessing the next symbol of a text: the loss of a guess at every place, and writing by drawing from the guesses."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def next_symbol_loss(scores: Tensor, targets: Tensor) -> Tensor:
    """The mean over all places of all samples."""
    return F.cross_entropy(scores.flatten(0, 1), targets.flatten())


@torch.no_grad()
def write_on(
    model: nn.Module, start: Sequence[int], length: int, *, longest: int, temperature: float, seed: int = 0
) -> list[int]:
    """`length` symbols, each drawn from the model's guess after the ones before it; the same for the same seed."""
    training, device = model.training, next(model.parameters()).device
    model.eval()
    chance = torch.Generator().manual_seed(seed)
    written = list(start)
    for _ in range(length):
        scores = model(torch.tensor([written[-longest:]], device=device))[0, -1]
        guess = torch.softmax(scores.float().cpu() / temperature, dim=0)
        written.append(int(torch.multinomial(guess, 1, generator=chance)))
    model.train(training)
    return written[len(start) :]
