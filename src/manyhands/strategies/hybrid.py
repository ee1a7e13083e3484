"""Hybrid: ddp over replicas that are each a cut model of several ranks.

                 stage 0        stage 1
    replica 0    rank 0  ---->  rank 1      each replica passes its shard of the batch through its stages
    replica 1    rank 2  ---->  rank 3      (one batch at a time, or as a pipeline of chunks)
                   |              |
                   '-- sum ------ '-- sum   gradients of a stage are summed over its replicas

    each step    every replica computes the gradient of its shard, weighted by shard / global batch;
                 ranks that hold the same stage sum their gradients; every rank updates its own layers

Cost per step, with P bytes of trained parameters, r replicas and A_k, G_k bytes crossing cut k for the whole batch:
bytes handed over r * P + sum_k (A_k + G_k). Held on a rank: its layers, and the activations of its shard. Exact, as
ddp is.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from ..data.batches import Batch
from ..data.order import Shard
from ..errors import BadInput
from ..job import Job
from ..model import Cut
from ..world.rank import Rank
from .base import Loss, Strategy, Worker, refuse
from .schedules import plan
from .stages import StagesWorker, chunk_sizes, cut_model


@dataclass(frozen=True)
class Hybrid(Strategy):
    """ranks = replicas x stages: any two give the third."""

    ranks: int = 0
    replicas: int = 0
    stages: int = 0
    chunks: int = 1
    schedule: str = "1f1b"
    balance: str | tuple[int, ...] = "time"
    transport: str = "auto"

    name = "hybrid"
    summary = "ddp over replicas that are each a cut model of several ranks"

    def __post_init__(self) -> None:
        ranks, replicas, stages = self.ranks, self.replicas, self.stages
        if self.chunks < 1:
            raise BadInput(f"hybrid:chunks must be at least 1 (found {self.chunks})")
        if not stages:
            stages = ranks // replicas if ranks and replicas else 2
        if not replicas:
            replicas = ranks // stages if ranks else 2
        if min(replicas, stages) < 1 or (ranks and ranks != replicas * stages):
            raise BadInput(
                f"hybrid: replicas x stages must be the number of ranks (replicas: {self.replicas or replicas}, "
                f"stages: {self.stages or stages}, ranks: {ranks}); any two give the third"
            )
        for name, value in (("ranks", replicas * stages), ("replicas", replicas), ("stages", stages)):
            object.__setattr__(self, name, value)

    def check(self, job: Job) -> None:
        if job.settings.sync_batchnorm and job.has_batchnorm:
            raise refuse(self, "does not join BatchNorm over replicas (sync_batchnorm); use ddp")

    def prepare(self, job: Job) -> Cut:
        return cut_model(self, job, self.stages, self.balance, option="stages=")

    def feed(self, rank: Rank) -> Shard:
        replica, place = divmod(rank.index, self.stages)
        first, last = place == 0, place == self.stages - 1
        return Shard(replica, self.replicas, input=first, target=last, repeats=not first)

    def setup(self, job: Job, rank: Rank) -> Worker:
        return HybridWorker(self, job, rank)


class HybridWorker(StagesWorker):
    """One stage of one replica."""

    def __init__(self, strategy: Hybrid, job: Job, rank: Rank):
        self.strategy = strategy
        replica = rank.index // strategy.stages
        super().__init__(job, rank, job.prepared, range(replica * strategy.stages, (replica + 1) * strategy.stages))
        for place in range(strategy.stages):  # everyone helps to make every group
            group = dist.new_group([self._process(other, place) for other in range(strategy.replicas)])
            if place == self.place:
                self.siblings = group

    def step(self, batch: Batch | None) -> Loss | None:
        assert batch is not None
        sizes = chunk_sizes(batch.count, self.strategy.chunks, None)
        actions = plan(self.strategy.schedule, self.place, self.strategy.stages, len(sizes))
        loss = self.passes(batch, actions, sizes)
        if batch.update:
            self._sum_over_replicas()
            self.finish(batch)
        return loss

    def _sum_over_replicas(self) -> None:
        """Gradients of my layers, summed over the ranks that hold the same ones, as one buffer."""
        parameters = [parameter for parameter in self._by_name.values() if parameter.grad is not None]
        if not parameters or self.strategy.replicas == 1:
            return
        gradients = [parameter.grad for parameter in parameters]
        buffer = _flatten_dense_tensors(gradients)
        self.rank.all_reduce(buffer, self.siblings)
        for parameter, summed in zip(parameters, _unflatten_dense_tensors(buffer, gradients), strict=True):
            parameter.grad = summed
