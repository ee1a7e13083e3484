"""BatchNorm under DistributedDataParallel: each rank normalises with the statistics of its own small batch.

Cure: SyncBatchNorm on GPUs, or a norm that does not look at other samples. (`--healthy` has GroupNorm.)
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

CAUSE = "batchnorm"


def network(healthy):
    def norm(channels):
        return nn.GroupNorm(2, channels) if healthy else nn.BatchNorm2d(channels)

    return nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False),
        norm(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, bias=False),
        norm(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 5),
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--healthy", action="store_true")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(network(args.healthy))
    data = TensorDataset(torch.randn(256, 3, 10, 10), torch.randint(5, (256,)))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(2):
        sampler.set_epoch(epoch)
        model.train()
        for images, target in loader:
            loss = criterion(model(images), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
