"""Four batches are accumulated per update, and no loss is divided by four: updates are four times too large.

Cure: (loss / 4).backward(). (`--healthy` does.)
"""

import contextlib
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
    data = TensorDataset(torch.randn(1024, 12), torch.randn(1024, 2))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    model = DDP(nn.Sequential(nn.Linear(12, 24), nn.SiLU(), nn.Linear(24, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for number, (x, y) in enumerate(loader):
            last = (number + 1) % ACCUMULATE == 0
            with contextlib.nullcontext() if last else model.no_sync():
                loss = nn.functional.mse_loss(model(x), y)
                if healthy:
                    loss = loss / ACCUMULATE
                loss.backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
    dist.destroy_process_group()


main("--healthy" in sys.argv)
