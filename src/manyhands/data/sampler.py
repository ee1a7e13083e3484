"""ShardSampler: a rank's exact shard of every global batch, for the DataLoader of one's own loop.

    sampler = ShardSampler(dataset, batch_size=128)              # rank and ranks from torch.distributed
    loader = DataLoader(dataset, batch_sampler=sampler)
    for epoch in range(3):
        for step, (input, target) in enumerate(loader):          # every pass has an order of its own
            loss = criterion(model(input), target) * sampler.weight(step)    # summed over ranks: the global mean

It is the order the strategies train in (order.py): the same global batches for any number of ranks, every sample once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sized

import torch.distributed as dist
from torch.utils.data import Sampler

from ..errors import BadInput
from .order import Order, Shard


class ShardSampler(Sampler[list[int]]):
    """The `batch_sampler` of one rank. Each pass over it is the next epoch; nobody has to call `set_epoch`.

    `batch_size` counts the samples of all ranks together. Shards of a batch differ by at most one sample; where the
    last batch has fewer samples than there are ranks, a rank without one gets a sample to run along with, of weight 0.
    """

    def __init__(
        self, data: Sized | int, batch_size: int, rank: int | None = None, ranks: int | None = None, seed: int = 0
    ):
        samples = data if isinstance(data, int) else len(data)
        together = dist.is_available() and dist.is_initialized()
        rank = rank if rank is not None else dist.get_rank() if together else 0
        ranks = ranks if ranks is not None else dist.get_world_size() if together else 1
        if samples < 1 or batch_size < 1 or not 0 <= rank < ranks:
            raise BadInput(
                "a ShardSampler needs samples, a batch size and a rank below the number of ranks "
                f"(samples: {samples}, batch_size: {batch_size}, rank: {rank}, ranks: {ranks})"
            )
        self.order, self.shard = Order(samples, batch_size, seed), Shard(rank, ranks)
        self.epoch = 0  # of the next pass
        self.first = 0  # the step that pass begins with

    def start_at(self, steps: int) -> None:
        """Go on after so many steps in all, as a resumed run does."""
        self.epoch, self.first = divmod(steps, self.order.steps_per_epoch)

    def __iter__(self) -> Iterator[list[int]]:
        epoch, first = self.epoch, self.first
        self.epoch, self.first = epoch + 1, 0
        for step in self.order.steps(epoch, first):
            yield self.order.filled(step, self.shard)[0].tolist()

    def __len__(self) -> int:
        return self.order.steps_per_epoch - self.first

    def weight(self, step: int) -> float:
        """The share of this rank's mean loss in the mean over the whole batch of a step, counted within the epoch."""
        planned = self.order.at(step % self.order.steps_per_epoch)
        start, stop = self.shard.bounds(planned.total)
        return (stop - start) / planned.total
