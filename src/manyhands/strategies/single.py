"""Single device: the reference that every exact strategy must match.

    gradient = backward(loss(model(batch)));  weights = update(weights, gradient)

Cost: nothing travels. Held: weights, gradients, optimizer state and activations of the whole batch.
Exact by definition.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..errors import BadInput
from ..world.rank import Rank
from .contract import Strategy, Traits, Worker
from .job import Job
from .pieces.rank_model import place_model
from .pieces.timelines import alone
from .pieces.worker import OrdinaryWorker


@dataclass(frozen=True)
class Single(Strategy):
    """One process, one device.

    Args:
        ranks: always 1

    Example:
        manyhands train glyphs single
    """

    ranks: int = 1

    name = "single"
    summary = "one process, one device: the baseline"
    traits = Traits(runs_on="CPU or CUDA", shards_batch=False, compiles=True, timeline=alone)

    def __post_init__(self) -> None:
        if self.ranks != 1:
            raise BadInput(f"single has 1 rank (found --ranks {self.ranks}); use ddp for more")

    def setup(self, job: Job, rank: Rank) -> Worker:
        model = place_model(job, rank)
        if rank.device.type == "cuda" and job.settings.precision == "bf16":
            # convolutions of half precision run on tensor cores in this layout, without copies in between
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return OrdinaryWorker(job, rank, model, model)
