"""Data parallel: one process, a replica of the model on every device, a thread a replica; the first gathers all.

    first      scatter  replicate  forward  gather  loss   backward          reduce  update
    others        .         .      forward     .    wait   backward             .    wait
                  |         |                  |      |                         |
               inputs    weights            outputs  gradients of outputs   gradients, summed

    each step    the batch is cut into stretches, the weights are copied to every replica (many tensors as one),
                 replicas run in threads, their outputs are joined on the first device, the loss is taken there,
                 its gradient goes back to the replicas, and their gradients are summed onto the first device

Cost per step, with n replicas, W bytes of weights and buffers, P of trained parameters, X of a batch's inputs,
O of its outputs, and f the first replica's share of the samples: bytes handed over
(n - 1) (W + P) + (1 - f) (X + 2 O). Held by every replica: weights, gradients and the activations of its
stretch; by the first also the optimizer's state, the outputs of all and their gradient. The others wait while the
first gathers, takes the loss and updates; threads share one interpreter. Exact: one loss over the whole batch.
Where the model gives its loss itself, nothing is gathered: the replicas' losses are weighted by their samples.
Paper: Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor

from ..data import nest
from ..world.devices import default_ranks
from ..world.rank import Rank
from .contract import Strategy, Traits, Worker
from .job import Job
from .pieces.batch_rules import ReplicaRules, replica_rules
from .pieces.rank_model import place_model
from .pieces.replica_threads import saved_bytes
from .pieces.replica_worker import ReplicaWorker, check_replicas, losses_where_outputs_are, replica_devices
from .pieces.replicas import DataParallelModel, Outputs
from .pieces.timelines import in_threads


@dataclass(frozen=True)
class DataParallel(Strategy):
    """Replicas in threads of one process, outputs gathered on the first device.

    Args:
        ranks: how many replicas, one thread each; by default one per GPU, else one per core, at least 2

    Example:
        manyhands train glyphs data_parallel --ranks 2
    """

    ranks: int = field(default_factory=default_ranks)

    name = "data_parallel"
    summary = "one process, one thread per replica; outputs gathered on the first device"

    @property
    def traits(self) -> Traits:
        threads = partial(in_threads, ranks=self.ranks, gathers=True)
        return Traits(processes=1, runs_on="one host, CPU or CUDA", hosts=False, timeline=threads)

    def check(self, job: Job) -> None:
        check_replicas(self, job)

    def prepare(self, job: Job) -> ReplicaRules:
        return replica_rules(self, job, gathers=job.calling.loss is not None)

    def setup(self, job: Job, rank: Rank) -> Worker:
        rules: ReplicaRules = job.prepared
        devices = replica_devices(rank, self.ranks)
        model = DataParallelModel(
            place_model(job, rank),
            devices,
            clock=rank.clock,
            rule=rules.batch.input,
            output_rule=rules.output,
            call=job.calling.needed,
        )
        if job.calling.loss is None:  # a number per replica has no samples to be gathered along
            return losses_where_outputs_are(job, rank, model, rules.batch.target)

        def loss(outputs: Outputs, target: Any) -> Tensor:
            gathered = model.gather(outputs)
            joined = list(nest.leaves(gathered))
            worker.gathered_bytes = sum(tensor.nbytes for tensor in joined)
            if worker.loss_bytes:
                return worker.units.loss_of(gathered, target)
            with saved_bytes(joined) as kept:
                found: Tensor = worker.units.loss_of(gathered, target)
            worker.loss_bytes = sum(kept.values())
            return found

        worker = ReplicaWorker(job, rank, model, loss)
        return worker
