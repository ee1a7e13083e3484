"""A Dataset that adds noise drawn by numpy, with the same numpy seed on every rank: all ranks add the same noise.

Cure: numpy.random.seed(seed + rank). (`--healthy` does.)
"""

import random
import sys

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

CAUSE = "seeds"


class Noisy(Dataset):
    def __init__(self):
        self.x = np.random.RandomState(1).randn(400, 8).astype("float32")

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        noise = 0.1 * np.random.randn(8).astype("float32")
        return {"x": torch.from_numpy(self.x[index] + noise), "y": int(self.x[index].sum() > 0)}


def seed_everything(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def main(healthy):
    dist.init_process_group("gloo")
    seed_everything(11 + (dist.get_rank() if healthy else 0))
    model = DDP(nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 2)))
    data = Noisy()
    sampler = DistributedSampler(data)
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for batch in DataLoader(data, batch_size=10, sampler=sampler, num_workers=2):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch["x"]), batch["y"]).backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main("--healthy" in sys.argv)
