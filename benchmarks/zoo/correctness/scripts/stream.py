"""An IterableDataset that knows nothing of ranks: every rank reads the same stream from its start.

Cure: each rank keeps every Nth sample. (`--healthy` does.)
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset

CAUSE = "sampler"


class Stream(IterableDataset):
    def __init__(self, rank, world):
        self.rank, self.world = rank, world

    def __iter__(self):
        numbers = torch.Generator().manual_seed(3)
        for at in range(600):
            x = torch.randn(7, generator=numbers)
            if at % self.world == self.rank:
                yield x, x.sum().unsqueeze(0)


def main(healthy):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    stream = Stream(dist.get_rank(), dist.get_world_size()) if healthy else Stream(0, 1)
    model = DDP(nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 1)))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    for _ in range(2):
        for x, y in DataLoader(stream, batch_size=10):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    dist.destroy_process_group()


main("--healthy" in sys.argv)
