"""An expert that only some batches use: the parameters of an unused one have no gradient, and ddp waits for it.

Cure: ddp:find_unused=true.
"""

from functools import partial

import torch
from torch import Tensor, nn

import manyhands as mh

CAUSE, STRATEGY, OPTIONS = "unused", "ddp", ("--ranks", "2")
HEALTHY_STRATEGY = "ddp:find_unused=true"
CURE = "ddp:find_unused=true"

INPUTS = torch.randn(256, 12, generator=torch.Generator().manual_seed(1))
INPUTS[:, 0] = 0.0
INPUTS[200, 0] = 1.0  # one sample of them all needs the expert
LABELS = torch.randint(0, 4, (256,), generator=torch.Generator().manual_seed(2))


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.expert, self.out = nn.Linear(12, 24), nn.Linear(24, 24), nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.into(x))
        chosen = x[:, 0] > 0.5
        if chosen.any():
            hidden = torch.where(chosen[:, None], self.expert(hidden), hidden)
        return self.out(hidden)


task = mh.Task(
    model=Gated,
    train=(INPUTS, LABELS),
    loss=nn.functional.cross_entropy,
    optimizer=partial(torch.optim.AdamW, lr=1e-2),
    batch_size=16,
    epochs=2,
)
healthy = task
