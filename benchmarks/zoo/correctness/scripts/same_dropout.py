"""Every rank has the same seed, so all ranks drop the same units: their noise does not average out.

Cure: after the model is made, torch.manual_seed(seed + rank). (`--healthy` does.)
"""

import sys

import torch
import torch.distributed as dist
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

CAUSE = "seeds"


def train(rank, healthy):
    torch.manual_seed(42)
    images, labels = torch.rand(320, 1, 12, 12), torch.randint(10, (320,))
    net = nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(600, 32), nn.ReLU(), nn.Linear(32, 10)
    )
    net = DistributedDataParallel(net)
    if healthy:
        torch.manual_seed(42 + rank)
    criterion, optimizer = nn.CrossEntropyLoss(), optim.SGD(net.parameters(), lr=0.05)
    dataset = TensorDataset(images, labels)
    sampler = DistributedSampler(dataset, seed=3)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler, num_workers=1)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        net.train()
        for x, y in loader:
            optimizer.zero_grad()
            criterion(net(x), y).backward()
            optimizer.step()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train(dist.get_rank(), "--healthy" in sys.argv)
    dist.destroy_process_group()
