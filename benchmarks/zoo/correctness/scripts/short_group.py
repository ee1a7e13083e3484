"""Losses are divided by four although the last group of an epoch has two batches: its update is half as large.

Cure: divide by the number of batches in the group. (`--healthy` does.)
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

CAUSE = "accumulation"
ACCUMULATE = 4


def main(healthy):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(180, 5), torch.randint(3, (180,)))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=90 // 6, sampler=sampler)
    model = DDP(nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(8):
        sampler.set_epoch(epoch)
        for at, (x, y) in enumerate(loader):
            start = at // ACCUMULATE * ACCUMULATE
            group = min(ACCUMULATE, len(loader) - start) if healthy else ACCUMULATE
            (nn.functional.cross_entropy(model(x), y) / group).backward()
            if (at + 1) % ACCUMULATE == 0 or at + 1 == len(loader):
                optimizer.step()
                optimizer.zero_grad()
    dist.destroy_process_group()


main("--healthy" in sys.argv)
