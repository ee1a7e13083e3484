"""Adam on a parameter that the loss does not depend on: the bias of attention keys has a gradient of rounding alone, and
Adam makes whole steps of it. The strategy is equal; its float32 weights are not.

Cure: SGD, or no bias on the keys.
"""

from functools import partial

import torch
from torch import Tensor, nn

import manyhands as mh

CAUSE = "rounding"
STRATEGY = "ddp"
OPTIONS = ("--ranks", "2")
CURE = "keys without a bias"

INPUTS = torch.randn(256, 6, 16, generator=torch.Generator().manual_seed(1))
LABELS = torch.randint(0, 4, (256,), generator=torch.Generator().manual_seed(2))


class Attention(nn.Module):
    def __init__(self, bias: bool):
        super().__init__()
        self.query, self.key = nn.Linear(16, 16), nn.Linear(16, 16, bias=bias)
        self.value, self.out = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        mixed = nn.functional.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x))
        return self.out(mixed.mean(1))


def make(bias: bool) -> mh.Task:
    return mh.Task(
        model=partial(Attention, bias),
        train=(INPUTS, LABELS),
        loss=nn.functional.cross_entropy,
        optimizer=partial(torch.optim.Adam, lr=1e-2, eps=1e-10),
        batch_size=16,
        epochs=2,
    )


task, healthy = make(True), make(False)
