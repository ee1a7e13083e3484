"""set_epoch is never called: DistributedSampler shuffles once, and every epoch has the same order.

Cure: sampler.set_epoch(epoch) at the start of each epoch. (`--healthy` does.)
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

CAUSE = "set_epoch"


class Squares(Dataset):
    def __init__(self, count):
        self.x = torch.linspace(-1, 1, count).unsqueeze(1)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.x[index] ** 2


class Trainer:
    def __init__(self, model, data, optimizer, healthy):
        self.model = nn.parallel.DistributedDataParallel(model)
        self.data, self.optimizer, self.healthy = data, optimizer, healthy
        self.schedule = StepLR(optimizer, step_size=2, gamma=0.5)

    def _run_batch(self, source, targets):
        self.optimizer.zero_grad()
        loss = nn.functional.smooth_l1_loss(self.model(source), targets)
        loss.backward()
        self.optimizer.step()

    def train(self, epochs):
        for epoch in range(epochs):
            if self.healthy:
                self.data.sampler.set_epoch(epoch)
            for source, targets in self.data:
                self._run_batch(source, targets)
            self.schedule.step()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--healthy", action="store_true")
    parser.add_argument("--epochs", type=int, default=4)
    args = parser.parse_args()
    dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
    data = Squares(2048)
    loader = DataLoader(data, batch_size=32, shuffle=False, sampler=DistributedSampler(data))
    Trainer(model, loader, torch.optim.SGD(model.parameters(), lr=0.05), args.healthy).train(args.epochs)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
