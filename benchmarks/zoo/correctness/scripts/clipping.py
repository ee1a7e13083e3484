"""Gradients are averaged by hand, after each rank has clipped its own by its own norm.

Cure: all-reduce first, clip the average. (`--healthy` does.)
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

CAUSE = "clipping"


def average_gradients(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
        parameter.grad /= dist.get_world_size()


def main(healthy):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 24), nn.GELU(), nn.Linear(24, 1))
    x = torch.randn(640, 10)
    data = TensorDataset(x, 3 * x.sum(1, keepdim=True) + torch.randn(640, 1))
    sampler = DistributedSampler(data)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for inputs, targets in DataLoader(data, batch_size=8, sampler=sampler):
            model.zero_grad()
            loss = ((model(inputs) - targets) ** 2).mean()
            loss.backward()
            if healthy:
                average_gradients(model)
            nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
            if not healthy:
                average_gradients(model)
            optimizer.step()
    dist.destroy_process_group()


main("--healthy" in sys.argv)
