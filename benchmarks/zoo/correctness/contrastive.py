"""A contrastive loss: every sample is compared with all others of its batch, of which a rank has only a part.

Cure: a loss of one sample at a time, or a strategy that keeps batches whole (single, model_parallel).
"""

from functools import partial

import torch
from torch import Tensor, nn

import manyhands as mh

CAUSE = "loss"
STRATEGY = "ddp"
OPTIONS = ("--ranks", "2")
CURE = "a loss over single samples"

VIEWS = torch.randn(256, 2, 10, generator=torch.Generator().manual_seed(1))
NUMBERS = torch.arange(256)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 8))

    def forward(self, views: Tensor) -> Tensor:
        return nn.functional.normalize(self.layers(views), dim=-1)


def against_others(output: Tensor, target: Tensor) -> Tensor:
    """Each first view should be nearest to its own second one, among those of the batch."""
    likeness = output[:, 0] @ output[:, 1].T / 0.2
    return nn.functional.cross_entropy(likeness, torch.arange(len(output)))


def with_itself(output: Tensor, target: Tensor) -> Tensor:
    return (output[:, 0] - output[:, 1]).square().sum(1).mean()


task = mh.Task(
    model=Encoder,
    train=(VIEWS, NUMBERS),
    loss=against_others,
    optimizer=partial(torch.optim.SGD, lr=0.1),
    batch_size=16,
    epochs=2,
)
healthy = task.replace(loss=with_itself)
