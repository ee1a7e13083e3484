"""Hybrid: ddp over replicas that are each a cut model of several ranks.

                 stage 0        stage 1
    replica 0    rank 0  ---->  rank 1      each replica passes its shard of the batch through its stages
    replica 1    rank 2  ---->  rank 3      (one batch at a time, or as a pipeline of chunks)
                   |              |
                   '-- sum ------ '-- sum   gradients of a stage are summed over its replicas

    each step    every replica computes the gradient of its shard, weighted by shard / global batch;
                 ranks that hold the same stage sum their gradients; every rank updates its own layers

Cost per step, with P bytes of trained parameters, r replicas and A_k, G_k bytes crossing cut k for the whole batch:
bytes handed over r * P + sum_k (A_k + G_k), where tied weights count once for each stage that holds them; summing
those adds as much again, clipping 8 a rank. Held on a rank: its layers, and the activations of its shard. Exact, as ddp
is: shards and chunks are weighted with their true sizes. BatchNorm sees a shard (a chunk) at a time and is then not
exact; the first replica's statistics are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from ..data.order import PlannedStep, Shard
from ..errors import BadInput, did_you_mean
from ..model import Cut
from ..world.rank import Rank
from .contract import Strategy, Traits, Worker, refuse
from .job import Job
from .pieces.batch_rules import BatchRules, batch_rules
from .pieces.cut_model import Balance, cut_model
from .pieces.flat_buffers import through_flat
from .pieces.refusals import sparse_layer
from .pieces.stages import StagesWorker
from .pieces.timelines import staged

SCHEDULES = ("gpipe", "1f1b")  # a rank of a replica holds one stage


@dataclass(frozen=True)
class Hybrid(Strategy):
    """ranks = replicas x stages: any two give the third.

    Args:
        ranks: how many processes train; 0 means replicas x stages
        replicas: how many copies of the cut model there are; 0 means ranks / stages, or 2
        stages: how many ranks a copy is cut over; 0 means ranks / replicas, or 2
        chunks: how many chunks the share of a replica is cut into; 1 sends it through as a whole
        schedule: the order of forward and backward passes: `1f1b` or `gpipe`
        balance: where the model is cut: into stages of equal `time` (measured), `parameters` or `memory`, or by hand:
            `3+5` puts 3 layers on the first stage and 5 on the second
        transport: what carries messages between ranks: `auto` chooses among `shm` (shared memory, one host), `gloo`,
            `nccl` (a GPU per rank) and `hosts` (several hosts with several ranks each)

    Example:
        manyhands train glyphs hybrid:replicas=2,stages=2 --ranks 4
    """

    ranks: int = 0
    replicas: int = 0
    stages: int = 0
    chunks: int = 1
    schedule: str = "1f1b"
    balance: Balance = "time"
    transport: str = "auto"

    name = "hybrid"
    summary = "ddp over replicas that are each a cut model of several ranks"

    def __post_init__(self) -> None:
        ranks, replicas, stages = self.ranks, self.replicas, self.stages
        if self.chunks < 1:
            raise BadInput(f"hybrid:chunks must be at least 1 (found {self.chunks})")
        if self.schedule not in SCHEDULES:
            raise BadInput(f'hybrid has no schedule "{self.schedule}"{did_you_mean(self.schedule, SCHEDULES)}')
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

    @property
    def traits(self) -> Traits:
        several = self.chunks > 1
        return Traits(
            transport=self.transport,
            shards_batch=self.replicas > 1 or several,
            chunks_batch=several,
            copies=(self.replicas,) * 3,
            timeline=partial(
                staged, ranks=self.ranks, replicas=self.replicas, schedule=self.schedule, chunks=self.chunks
            ),
        )

    def check(self, job: Job) -> None:
        if (sparse := sparse_layer(job.model)) is not None:
            raise refuse(self, f'sums gradients as one dense buffer (sparse: module "{sparse}"); use ddp or pipeline')
        if job.settings.sync_batchnorm and job.has_batchnorm:
            raise refuse(self, "does not join BatchNorm over replicas (sync_batchnorm); use ddp")

    def prepare(self, job: Job) -> tuple[Cut, BatchRules | None]:
        rules = batch_rules(self, job) if self.chunks > 1 else None
        return cut_model(self, job, self.stages, self.balance, "stages =", self.chunks > 1), rules

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
        pieces, rules = job.prepared
        peers = range(replica * strategy.stages, (replica + 1) * strategy.stages)
        super().__init__(job, rank, pieces, peers, rules, schedule=strategy.schedule, chunks=strategy.chunks)
        for place in range(strategy.stages):  # everyone helps to make every group
            group = dist.new_group([self.process(other, place) for other in range(strategy.replicas)])
            if place == self.place:
                self.siblings = group

    def finish(self, step: PlannedStep) -> None:
        if self.strategy.replicas > 1:
            self._sum_over_replicas()
        super().finish(step)

    def _sum_over_replicas(self) -> None:
        """Gradients of my layers, summed over the ranks that hold the same ones, as one buffer of each type.

        A replica where a layer was not used adds zeros. Parameters that may be used by no replica bring a mark, because
        an optimizer treats a gradient of zeros and no gradient at all differently.
        """
        doubtful = [name for name in self.named if name in self.job.unused]
        gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in self.named.values()]
        marks = [self.named[name].new_full((1,), float(self.named[name].grad is not None)) for name in doubtful]

        def summed(flat: Tensor) -> Tensor:
            self.rank.all_reduce(flat, self.siblings)
            return flat

        sums = through_flat([*gradients, *marks], summed)
        unused = {name for name, mark in zip(doubtful, sums[len(gradients) :], strict=True) if not mark}
        for (name, parameter), total in zip(self.named.items(), sums, strict=False):
            parameter.grad = None if name in unused else torch.empty_like(parameter).copy_(total)
