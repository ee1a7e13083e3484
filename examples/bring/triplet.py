"""A triplet loss: samples have three parts and no target (examples/bring/triplet.py)."""

from functools import partial

import torch
from torch import Tensor, nn

import manyhands as mh


class Embedder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 8))

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.body(anchor), self.body(positive), self.body(negative)


anchor, noise, negative = torch.randn(3, 512, 20, generator=torch.Generator().manual_seed(0))
task = mh.Task(
    model=Embedder,
    train=torch.utils.data.TensorDataset(anchor, anchor + 0.1 * noise, negative),
    loss=lambda output: nn.functional.triplet_margin_loss(*output),
    optimizer=partial(torch.optim.SGD, lr=0.1),
    batch_size=32,
)
