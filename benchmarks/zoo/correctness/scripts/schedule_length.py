"""The schedule's length is counted over the whole data set, but each rank makes only its share of the steps.

Cure: epochs * len(loader), with the loader of this rank. (`--healthy` does.)
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

CAUSE = "schedule"
EPOCHS, BATCH = 3, 16


def main(healthy):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(512, 8), torch.rand(512, 1).round())
    sampler = DistributedSampler(data)
    loader = DataLoader(data, BATCH, sampler=sampler)
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    total = EPOCHS * (len(loader) if healthy else len(data) // BATCH)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=total)
    criterion = nn.BCEWithLogitsLoss()
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad(set_to_none=True)
            criterion(model(x), y).backward()
            optimizer.step()
            scheduler.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main("--healthy" in sys.argv)
