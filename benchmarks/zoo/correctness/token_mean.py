"""A hand-written mean over tokens that are not padding: parts of a batch with few tokens count too much.

Cure: say what the loss is a mean over (`weight`).
"""

from functools import partial

import torch
from torch import Tensor, nn

import manyhands as mh

CAUSE = "loss"
STRATEGY = "ddp"
OPTIONS = ("--ranks", "2")
CURE = "weight=lambda target: (target != 0).sum()"

generator = torch.Generator().manual_seed(3)
TOKENS = torch.randint(1, 20, (256, 9), generator=generator)
LENGTHS = torch.randint(1, 10, (256,), generator=generator)
TOKENS = TOKENS.masked_fill(torch.arange(9)[None, :] >= LENGTHS[:, None], 0)


def model() -> nn.Module:
    return nn.Sequential(nn.Embedding(20, 12), nn.Linear(12, 20))


def masked_mean(output: Tensor, target: Tensor) -> Tensor:
    mask = (target != 0).float()
    each = nn.functional.cross_entropy(output.flatten(0, 1), target.flatten(), reduction="none")
    return (each * mask.flatten()).sum() / mask.sum()


task = mh.Task(
    model=model,
    train=(TOKENS, TOKENS.roll(-1, 1) * (TOKENS != 0)),
    loss=masked_mean,
    optimizer=partial(torch.optim.SGD, lr=0.5),
    batch_size=16,
    epochs=2,
)
healthy = task.replace(weight=lambda target: (target != 0).sum())
