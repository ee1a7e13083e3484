"""Every rank has the same seed, so all ranks draw the same batches: N ranks do the work of one.

Cure: torch.manual_seed(seed + rank). (`--healthy` does.)
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

CAUSE = "seeds"
BLOCK, BATCH, UPDATES = 12, 16, 30


def get_batch(series):
    starts = torch.randint(len(series) - BLOCK - 1, (BATCH,))
    return torch.stack([series[i : i + BLOCK] for i in starts]), torch.stack([series[i + BLOCK] for i in starts])


def main():
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(7 + (rank if "--healthy" in sys.argv else 0))
    series = torch.sin(torch.arange(5000) / 9.0)
    model = DDP(nn.Sequential(nn.Linear(BLOCK, 32), nn.Tanh(), nn.Linear(32, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(UPDATES):
        x, y = get_batch(series)
        loss = F.mse_loss(model(x).squeeze(1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


main()
