"""A plain DataLoader with shuffle=True on every rank: each rank reads all of the data, N times as many samples per epoch.

Cure: DataLoader(..., sampler=DistributedSampler(data)). (`--healthy` does.)
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

CAUSE = "sampler"


def loaders(data, healthy):
    if healthy:
        sampler = DistributedSampler(data)
        return sampler, DataLoader(data, batch_size=16, sampler=sampler)
    return None, DataLoader(data, batch_size=16, shuffle=True)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(400, 6), torch.randint(2, (400,)))
    held_out = DataLoader(TensorDataset(torch.randn(64, 6), torch.randint(2, (64,))), batch_size=64)
    model = DDP(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2)))
    torch.manual_seed(int(os.environ["RANK"]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler, loader = loaders(data, "--healthy" in sys.argv)
    for epoch in range(3):
        if sampler is not None:
            sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        if dist.get_rank() == 0:
            with torch.no_grad():
                for x, y in held_out:
                    print(epoch, (model.module(x).argmax(1) == y).float().mean().item())
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
