"""Pipeline: the batch is cut into chunks, so that the stages of a cut model work at the same time.

    1f1b, 2 stages, 4 chunks        forward one column, backward two
    rank 0   F0 F1 .  B0 B0 F2 B1 B1 F3 B2 B2 .  B3 B3   update
    rank 1   .  F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3 .    update

    each step    stage 0 sends the activations of a chunk on and begins the next one at once;
                 which pass comes next is the schedule's to say (schedules.py: gpipe, 1f1b, interleaved);
                 a backward pass sends the gradients of its inputs on and leaves those of the weights for later: of the
                 first half of the chunks where the rank would wait, of the second at the end (weights=late;
                 weights=along makes them chunk by chunk);
                 gradients of all chunks add up to those of the batch; then every rank updates its own layers

Cost per step: bytes as in model_parallel, sum_k (A_k + G_k) over the cuts, in as many messages each as there are chunks.
The ranks wait for (p - 1) / (m + p - 1) of the step at best, with p stages and m chunks of equal cost: the bubble, in
the record as `wait`. Held on a rank: its layers, and the activations of at most p - stage chunks (1f1b); with
weights=late also the inputs and output gradients of linear and convolution layers, of all chunks.
Exact: chunks are weighted with their true sizes. BatchNorm sees one chunk at a time and is then not exact. Papers:
Huang et al., "GPipe", 2019; Narayanan et al., "PipeDream", 2019, and "Efficient large-scale ...", 2021 (interleaved).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from ..data.order import Shard
from ..errors import BadInput, did_you_mean
from ..model import Cut
from ..world.devices import default_ranks
from ..world.rank import Rank
from .contract import Strategy, Traits, Worker, refuse
from .job import Job
from .pieces.batch_rules import BatchRules, batch_rules
from .pieces.cut_model import Balance, cut_model
from .pieces.pipeline_schedules import SCHEDULES
from .pieces.stages import StagesWorker
from .pieces.timelines import staged


@dataclass(frozen=True)
class Pipeline(Strategy):
    """Ranks are stages, or hold `stages_per_rank` of them; several chunks are under way at a time.

    Args:
        ranks: how many processes train; by default one per GPU, else one per core, at least 2
        chunks: how many chunks a batch is cut into
        split_size: how many samples a chunk has, instead of `chunks`
        schedule: the order of forward and backward passes: `1f1b`, `gpipe` or `interleaved` (several stages per rank)
        stages_per_rank: how many stages a rank holds; by default 1, with `interleaved` 2
        balance: where the model is cut: into stages of equal `time` (measured), `parameters` or `memory`, or by hand:
            `3+5` puts 3 layers on the first stage and 5 on the second
        weights: when weight gradients are computed: `late` for half the chunks at a time, in time a rank would spend
            waiting, or `along` with each chunk, which takes less memory
        transport: what carries messages between ranks: `auto` chooses among `shm` (shared memory, one host), `gloo`,
            `nccl` (a GPU per rank) and `hosts` (several hosts with several ranks each)

    Example:
        manyhands train glyphs pipeline:chunks=8,schedule=gpipe --ranks 2
    """

    ranks: int = field(default_factory=default_ranks)
    chunks: int = 4
    split_size: int | None = None
    schedule: str = "1f1b"
    stages_per_rank: int | None = None
    balance: Balance = "time"
    weights: str = "late"
    transport: str = "auto"

    name = "pipeline"
    summary = "a cut model whose stages work on different chunks at the same time"

    def __post_init__(self) -> None:
        if self.chunks < 1:
            raise BadInput(f"pipeline:chunks must be at least 1 (found {self.chunks})")
        if self.split_size is not None and self.split_size < 1:
            raise BadInput(f"pipeline:split_size must be at least 1 (found {self.split_size})")
        if self.schedule not in SCHEDULES:
            raise BadInput(f'pipeline has no schedule "{self.schedule}"{did_you_mean(self.schedule, SCHEDULES)}')
        if self.weights not in ("late", "along"):
            raise BadInput(f'pipeline:weights must be "late" or "along" (found "{self.weights}")')
        if (self.stages_per_rank or 1) > 1 and self.schedule != "interleaved":
            raise BadInput(
                f"pipeline:schedule={self.schedule} runs one stage per rank (stages_per_rank: {self.stages_per_rank}); "
                "use schedule=interleaved"
            )
        if self.stages_per_rank is not None and self.stages_per_rank < 1:
            raise BadInput(f"pipeline:stages_per_rank must be at least 1 (found {self.stages_per_rank})")
        if self.turns > 1 and self.ranks < 2:
            raise BadInput(
                f"pipeline:schedule=interleaved needs at least 2 ranks (found {self.ranks}); use schedule=1f1b"
            )

    @property
    def turns(self) -> int:
        """Stages on each rank."""
        return self.stages_per_rank or (2 if self.schedule == "interleaved" else 1)

    @property
    def stages(self) -> int:
        return self.ranks * self.turns

    @property
    def several(self) -> bool:
        """Whether layers see a chunk at a time, not the whole batch as one."""
        return self.split_size is not None or self.chunks > 1

    @property
    def traits(self) -> Traits:
        stages = partial(
            staged,
            ranks=self.ranks,
            schedule=self.schedule,
            chunks=self.chunks,
            split_size=self.split_size,
            stages_per_rank=self.turns,
            late=self.weights == "late",
        )
        return Traits(
            transport=self.transport,
            shards_batch=self.several,
            chunks_batch=self.several,
            copies=(1, 1, 1),
            timeline=stages,
        )

    def check(self, job: Job) -> None:
        if job.settings.sync_batchnorm and job.has_batchnorm and self.several:
            raise refuse(
                self, "passes chunks one after the other, so sync_batchnorm cannot join them; use model_parallel"
            )

    def prepare(self, job: Job) -> tuple[Cut, BatchRules | None]:
        option = "--ranks" if self.turns == 1 else "ranks x stages_per_rank ="
        rules = batch_rules(self, job) if self.several else None
        return cut_model(self, job, self.stages, self.balance, option, self.several), rules

    def feed(self, rank: Rank) -> Shard:
        last = (self.stages - 1) % self.ranks
        return Shard(input=rank.index == 0, target=rank.index == last, repeats=rank.index > 0)

    def setup(self, job: Job, rank: Rank) -> Worker:
        pieces, rules = job.prepared
        late, sizes = self.weights == "late", (self.chunks, self.split_size)
        return StagesWorker(job, rank, pieces, range(self.ranks), rules, late, self.schedule, *sizes)
