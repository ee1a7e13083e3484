"""Hogwild: every rank writes its updates into the shared weights, without a lock and without waiting.

    rank 0   read  forward  backward  write | read  forward  backward  write |
    rank 1     read  forward  backward  write | read  forward ...
                        ^ weights change while they are read: gradients are a little stale, on purpose

    each step    take the own shard of the global batch; read the weights in place (parameters ARE the shared
                 tensors); gradient = sum over the shard / samples of the global batch; the rank's optimizer
                 writes its update; nobody waits
    at the end   of an epoch a rank that is done makes the last shares of those behind, instead of waiting for them
    staleness    updates of others between reading and writing, from counters in shared memory
    sparse       a sparse gradient touches its own rows alone, so ranks rarely meet: the case of the proof

Cost per update, with n ranks: nothing travels on the CPU (a rank on a GPU copies P bytes of weights in and P of
gradients out). Held: one copy of the weights for all ranks; gradients and activations on each; optimizer state
once (`optimizer=shared`) or on each (`optimizer=rank`). Not exact: updates interleave, and where two ranks write
one number at once, one of the writes may be lost. One step moves the weights as far as in `single` for
optimizers that are linear in the gradient (SGD, momentum); those that normalise it (Adam) move up to n times as
far: lower their rate. Paper: Niu, Recht, Re, Wright, "HOGWILD!: A Lock-Free Approach to Parallelizing Stochastic
Gradient Descent", NIPS 2011.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from torch import Tensor

from ..data.batches import Batch
from ..world.devices import default_ranks
from ..world.rank import Rank
from .contract import Loss, Strategy, Traits, Worker, refuse
from .job import Job
from .pieces.optimizer_state import shareable_state
from .pieces.refusals import check_choices, check_shareable
from .pieces.shared_weights import shared_tensors
from .pieces.shared_worker import SharedWorker
from .pieces.timelines import alone


@dataclass(frozen=True)
class Hogwild(Strategy):
    """Shared weights, no lock.

    Args:
        ranks: how many processes train; by default one per GPU, else one per core, at least 2
        optimizer: whose optimizer state (momentum, say) is used: every `rank` its own, or one `shared` by all
        scale: what a rank divides its gradient by: the samples of the `global` batch, so that a step moves the weights
            as far as under single, or those of its own `shard`, the classic reading
        partition: what a rank reads: a part of every `batch`, or a `fixed` part of the data for the whole run

    Example:
        manyhands train sparse hogwild:scale=shard --ranks 2
    """

    ranks: int = field(default_factory=default_ranks)
    optimizer: str = "rank"
    scale: str = "global"
    partition: str = "batch"

    name = "hogwild"
    summary = "shared weights, every rank updates them without a lock"

    def __post_init__(self) -> None:
        check_choices(self, optimizer=("rank", "shared"), scale=("global", "shard"), partition=("batch", "fixed"))

    @property
    def traits(self) -> Traits:
        return Traits(
            exact="updates of several ranks interleave",
            runs_on="one host, CPU (or GPUs with the weights in host memory)",
            hosts=False,
            lockstep=False,
            survives=True,
            helps=self.partition == "batch",
            partition=self.partition,
            copies=(1, self.ranks, 1 if self.optimizer == "shared" else self.ranks),
            timeline=partial(alone, ranks=self.ranks),
        )

    def check(self, job: Job) -> None:
        if job.settings.sync_batchnorm:
            raise refuse(
                self,
                "ranks never meet, so sync_batchnorm cannot work; leave it out (statistics are averaged at the end)",
            )
        check_shareable(self, job)
        if self.optimizer == "shared":
            shareable_state(self, job)

    def share(self, job: Job) -> Mapping[str, Tensor]:
        state = shareable_state(self, job) if self.optimizer == "shared" else {}
        return {**shared_tensors(job.model, self.ranks), **state}

    def setup(self, job: Job, rank: Rank) -> Worker:
        return HogwildWorker(job, rank, self.scale)


class HogwildWorker(SharedWorker):
    """Read, compute, write: the whole algorithm."""

    def step(self, batch: Batch | None) -> Loss:
        assert batch is not None
        self.read()
        loss = self.gradient(batch)
        if batch.update:
            self.write(batch)
        return loss
