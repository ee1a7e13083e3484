"""A deep, even network: eight equal layers, the friendliest thing to cut into stages.

manyhands compare examples/deep_mlp.py single model_parallel pipeline:chunks=4 --ranks 2 --max-steps 50
"""

from functools import partial

import torch
from torch import Tensor, nn

import manyhands as mh

WIDTH = 1024


def data(samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Ten clouds of points that overlap a little, and the cloud each point belongs to."""
    chance = torch.Generator().manual_seed(seed)
    centres = torch.randn(10, WIDTH, generator=torch.Generator().manual_seed(0)) * 0.1
    clouds = torch.randint(0, 10, (samples,), generator=chance)
    return centres[clouds] + torch.randn(samples, WIDTH, generator=chance), clouds


def network() -> nn.Sequential:
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(8)]
    for layer in layers:
        nn.init.kaiming_normal_(layer.weight)  # torch's own start would fade the signal out over eight layers
    return nn.Sequential(*(nn.Sequential(layer, nn.ReLU()) for layer in layers), nn.Linear(WIDTH, 10))


task = mh.Task(
    model=network,
    train=partial(data, 8_192, seed=1),
    test=partial(data, 1_024, seed=2),
    loss=nn.functional.cross_entropy,
    optimizer=partial(torch.optim.SGD, lr=0.01, momentum=0.9),
    schedule=mh.schedules.cosine(warmup=0.1),
    batch_size=256,
    epochs=2,
)
