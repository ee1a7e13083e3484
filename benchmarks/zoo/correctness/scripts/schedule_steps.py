"""The schedule is stepped once per rank in every update, so on N ranks the rate falls N times as fast.

Cure: one scheduler.step() per update. (`--healthy` does.)
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

CAUSE = "schedule"

parser = argparse.ArgumentParser()
parser.add_argument("--healthy", action="store_true")
parser.add_argument("--lr", type=float, default=0.1)
args = parser.parse_args()

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DDP(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 3)))
data = TensorDataset(torch.randn(480, 16), torch.randint(3, (480,)))
sampler = DistributedSampler(data, shuffle=True)
loader = DataLoader(data, batch_size=16, sampler=sampler, drop_last=True)
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.97)
for epoch in range(4):
    sampler.set_epoch(epoch)
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for _ in range(1 if args.healthy else dist.get_world_size()):
            scheduler.step()
dist.destroy_process_group()
