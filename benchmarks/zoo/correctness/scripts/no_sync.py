"""Accumulation that never leaves no_sync: the flag is compared with the wrong micro-batch, so no update is averaged.

Cure: synchronise in the last backward pass of each update. (`--healthy` does.)
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

CAUSE = "not_reduced"
HEALTHY = "--healthy" in sys.argv
VOCABULARY, BLOCK, BATCH, MICRO_BATCHES, UPDATES = 40, 16, 8, 4, 25


class Characters(nn.Module):
    """A character model small enough to read."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 24)
        self.mix = nn.GRU(24, 32, batch_first=True)
        self.norm = nn.LayerNorm(32)
        self.out = nn.Linear(32, VOCABULARY)

    def forward(self, idx, targets=None):
        logits = self.out(self.norm(self.mix(self.embed(idx))[0]))
        loss = None if targets is None else F.cross_entropy(logits.view(-1, VOCABULARY), targets.view(-1))
        return logits, loss


rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group(backend="gloo")
torch.manual_seed(1337 + rank)
text = torch.randint(VOCABULARY, (20_000,), generator=torch.Generator().manual_seed(5))


def get_batch():
    starts = torch.randint(len(text) - BLOCK - 1, (BATCH,))
    return torch.stack([text[i : i + BLOCK] for i in starts]), torch.stack(
        [text[i + 1 : i + 1 + BLOCK] for i in starts]
    )


micro_batches = MICRO_BATCHES // world
model = DDP(Characters())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
for _update in range(UPDATES):
    for micro in range(micro_batches):
        model.require_backward_grad_sync = micro == (micro_batches - 1 if HEALTHY else micro_batches)
        x, y = get_batch()
        _, loss = model(x, y)
        loss = loss / micro_batches
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
dist.destroy_process_group()
