"""Each rank makes its model from its own seed and averages gradients by hand: N different models get the same updates.

Cure: broadcast rank 0's weights before training. (`--healthy` does.)
"""

import sys

import torch
import torch.distributed as dist
from torch import nn

CAUSE = "weights"


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.users, self.items = nn.Embedding(50, 8), nn.Embedding(80, 8)
        self.score = nn.Linear(8, 1)

    def forward(self, user, item):
        return self.score(self.users(user) * self.items(item)).squeeze(1)


def main(healthy):
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(100 + rank)
    model = TwoTowers()
    if healthy:
        for parameter in model.parameters():
            dist.broadcast(parameter.data, src=0)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    data = torch.Generator().manual_seed(9)
    users, items = torch.randint(50, (1200,), generator=data), torch.randint(80, (1200,), generator=data)
    stars = torch.rand(1200, generator=data)
    for epoch in range(3):
        order = torch.randperm(1200, generator=torch.Generator().manual_seed(epoch))[rank::world]
        for batch in order.split(24):
            optimizer.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(model(users[batch], items[batch]), stars[batch])
            loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= world
            optimizer.step()
    dist.destroy_process_group()


main("--healthy" in sys.argv)
