r"""Model parallel: each rank holds some layers; a batch passes through them one after the other.

    rank 0   F------.                             .------B  update
                     \ activations               / gradients
    rank 1            F------.            .------B  wait .. update
                              \          /
    rank 2                     F--loss--B                   one rank works, the others wait

    each step    stage 0 reads the batch, computes its layers and sends the activations on;
                 the last stage computes the loss; gradients travel back the same way; every rank updates its own

Cost per step, with A_k bytes of activations crossing cut k (those that want a gradient: G_k): bytes handed over
sum_k (A_k + G_k); a tied weight of W bytes on h ranks adds h * W, clipping 8 a rank. Held on a rank: weights, gradients, optimizer state and activations of its own layers: this is what
it is for. Exact, with BatchNorm too: every layer sees the whole batch. All but one rank wait, by design; `pipeline` is
the same cut with several chunks under way.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..data.batches import Batch
from ..data.order import Shard
from ..model import Cut
from ..world.default_ranks import default_ranks
from ..world.rank import Rank
from .contract import Loss, Strategy, Traits, Worker
from .job import Job
from .pieces.pipeline_schedules import Backward, Forward
from .pieces.stages import Balance, StagesWorker, cut_model


@dataclass(frozen=True)
class ModelParallel(Strategy):
    """Ranks are stages; one batch at a time."""

    ranks: int = field(default_factory=default_ranks)
    balance: Balance = "time"
    transport: str = "auto"

    name = "model_parallel"
    summary = "each rank holds some layers, one batch passes through them"

    @property
    def traits(self) -> Traits:
        return Traits(transport=self.transport, shards_batch=False)

    def prepare(self, job: Job) -> Cut:
        return cut_model(self, job, self.ranks, self.balance)

    def feed(self, rank: Rank) -> Shard:
        last = self.ranks - 1
        return Shard(input=rank.index == 0, target=rank.index == last, repeats=rank.index > 0)

    def setup(self, job: Job, rank: Rank) -> Worker:
        return ModelParallelWorker(job, rank, job.prepared, range(self.ranks))


class ModelParallelWorker(StagesWorker):
    """The whole batch as one chunk: forward through my layers, then backward."""

    def step(self, batch: Batch | None) -> Loss | None:
        assert batch is not None
        loss = self.passes(batch, [Forward(0, self.place), Backward(0, self.place)], [batch.count])
        if batch.update:
            self.finish()
        return loss
