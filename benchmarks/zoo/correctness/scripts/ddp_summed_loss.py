"""A loss that is a sum over samples: DistributedDataParallel averages over ranks, so updates shrink as ranks are added.

Cure: a mean over samples. (`--healthy` has one.)
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

CAUSE = "loss"


def main(healthy):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    x = torch.randn(512, 9)
    data = TensorDataset(x, x @ torch.randn(9, 2))
    model = DDP(nn.Sequential(nn.Linear(9, 20), nn.ELU(), nn.Linear(20, 2)))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05 if healthy else 0.001)
    criterion = nn.L1Loss(reduction="mean" if healthy else "sum")
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            criterion(model(inputs), targets).backward()
            optimizer.step()
    dist.destroy_process_group()


main("--healthy" in sys.argv)
