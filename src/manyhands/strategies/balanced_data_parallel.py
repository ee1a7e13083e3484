"""Balanced data parallel: replicas in threads as in data_parallel, but outputs stay and each replica takes its loss.

    first      scatter  replicate  forward  loss   mean   backward    reduce  update
    others        .         .      forward  loss     .    backward       .    wait
                  |         |                        |                   |
               inputs,   weights                 losses (a number     gradients, summed
               targets                           each)

    each step    inputs and targets are cut into the same stretches, weights are copied to every replica, each runs
                 and takes the loss of its own outputs; the mean of the losses, weighted by samples, is the batch's
    shares       unequal stretches for unequal devices (shares=1+3: the second gets three quarters)

Cost per step, with n replicas, W bytes of weights and buffers, P of trained parameters, X of a batch's inputs, Y of
its targets, and f the first replica's share of the samples: bytes handed over
(n - 1) (W + P + 8) + (1 - f) (X + Y); the 8 are a loss and its gradient. Held by every replica: weights,
gradients, activations and outputs of its stretch; by the first also the optimizer's state. Exact: losses are
weighted with the true count. Paper: Krizhevsky, "One weird trick for parallelizing convolutional neural networks",
2014; the loss on every device is common practice for models with large outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ..errors import BadInput
from ..world.devices import default_ranks
from ..world.rank import Rank
from .contract import Strategy, Traits, Worker
from .job import Job
from .pieces.batch_rules import BatchRules, ReplicaRules, replica_rules
from .pieces.rank_model import place_model
from .pieces.replica_worker import check_replicas, losses_where_outputs_are, replica_devices
from .pieces.replicas import DataParallelModel, normalised
from .pieces.timelines import in_threads


@dataclass(frozen=True)
class BalancedDataParallel(Strategy):
    """Replicas in threads of one process; outputs stay where they are, losses and gradients are reduced.

    Args:
        ranks: how many replicas, one thread each; 0 means as many as there are shares, else one per GPU or core, at
            least 2
        shares: how much of each batch every replica takes: `1+1+2` gives half of it to the third; by default all take
            the same

    Example:
        manyhands train glyphs balanced_data_parallel:shares=1+2 --ranks 2
    """

    ranks: int = 0
    shares: tuple[float, ...] | None = None

    name = "balanced_data_parallel"
    summary = "one process, one thread per replica; each takes the loss of its own outputs"

    @property
    def traits(self) -> Traits:
        threads = partial(in_threads, ranks=self.ranks, gathers=False)
        return Traits(processes=1, runs_on="one host, CPU or CUDA", hosts=False, timeline=threads)

    def __post_init__(self) -> None:
        if self.ranks < 0:
            raise BadInput(f"ranks must be a whole number of at least 1 (found {self.ranks})")
        if self.ranks == 0:
            object.__setattr__(self, "ranks", len(self.shares) if self.shares else default_ranks())
        if self.shares is not None:
            object.__setattr__(self, "shares", tuple(self.shares))
            normalised(self.shares, self.ranks)

    def check(self, job: Job) -> None:
        check_replicas(self, job)

    def prepare(self, job: Job) -> ReplicaRules:
        return replica_rules(self, job, gathers=False)

    def setup(self, job: Job, rank: Rank) -> Worker:
        rules: BatchRules = job.prepared.batch
        devices = replica_devices(rank, self.ranks)
        model = DataParallelModel(
            place_model(job, rank), devices, self.shares, rank.clock, rules.input, call=job.calling.needed
        )
        return losses_where_outputs_are(job, rank, model, rules.target)
