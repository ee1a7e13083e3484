r"""Model parallel: each rank holds some layers; a batch passes through them one after the other.

    rank 0   F------.                             .------B  update
                     \ activations               / gradients
    rank 1            F------.            .------B  wait .. update
                              \          /
    rank 2                     F--loss--B                   one rank works, the others wait

    each step    stage 0 reads the batch, computes its layers and sends the activations on;
                 the last stage computes the loss; gradients travel back the same way; every rank updates its own

Cost per step, with A_k bytes of activations crossing cut k (those that want a gradient: G_k): bytes handed over sum_k
(A_k + G_k); a tied weight of W bytes on h ranks adds h * W, clipping 8 a rank. Held on a rank: weights, gradients,
optimizer state and activations of its own layers: this is what it is for. Exact, with BatchNorm too: every layer sees
the whole batch. All but one rank wait, by design; `pipeline` is the same cut with several chunks under way.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from ..data.order import Shard
from ..model import Cut
from ..world.devices import default_ranks
from ..world.rank import Rank
from .contract import Strategy, Traits, Worker
from .job import Job
from .pieces.cut_model import Balance, cut_model
from .pieces.stages import StagesWorker
from .pieces.timelines import staged


@dataclass(frozen=True)
class ModelParallel(Strategy):
    """Ranks are stages; one batch at a time.

    Args:
        ranks: how many stages the model is cut into, one per process; by default one per GPU, else one per core, at least 2
        balance: where the model is cut: into stages of equal `time` (measured), `parameters` or `memory`, or by hand:
            `3+5` puts 3 layers on the first stage and 5 on the second
        transport: what carries messages between ranks: `auto` chooses among `shm` (shared memory, one host), `gloo`,
            `nccl` (a GPU per rank) and `hosts` (several hosts with several ranks each)

    Example:
        manyhands train glyphs model_parallel:balance=parameters --ranks 2
    """

    ranks: int = field(default_factory=default_ranks)
    balance: Balance = "time"
    transport: str = "auto"

    name = "model_parallel"
    summary = "each rank holds some layers, one batch passes through them"

    @property
    def traits(self) -> Traits:
        stages = partial(staged, ranks=self.ranks)
        return Traits(transport=self.transport, shards_batch=False, copies=(1, 1, 1), timeline=stages)

    def prepare(self, job: Job) -> Cut:
        return cut_model(self, job, self.ranks, self.balance)

    def feed(self, rank: Rank) -> Shard:
        last = self.ranks - 1
        return Shard(input=rank.index == 0, target=rank.index == last, repeats=rank.index > 0)

    def setup(self, job: Job, rank: Rank) -> Worker:
        return StagesWorker(job, rank, job.prepared, range(self.ranks))
