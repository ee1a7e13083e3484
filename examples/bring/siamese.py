"""A siamese net: forward takes two images (examples/bring/siamese.py)."""

from functools import partial

import torch
from torch import Tensor, nn

import manyhands as mh


class Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return (self.body(left) - self.body(right)).pow(2).mean(1)


left, right = torch.randn(2, 512, 8, 8, generator=torch.Generator().manual_seed(0))
task = mh.Task(
    model=Siamese,
    train=((left, right), (left * right).mean((1, 2))),
    loss=nn.functional.mse_loss,
    optimizer=partial(torch.optim.SGD, lr=0.05),
    batch_size=32,
)
