"""Local SGD: every rank trains its own copy on its shards of the batches; now and then the copies are averaged.

    rank 0   step step step step |           | step step step step |           |
                                 |  average  |                     |  average  | ...   period = 4
    rank 1   step step step step |           | step step step step |           |

    each update   weights_r -= rate * mean gradient of the rank's shard (its own optimizer, schedule and clipping)
    each period   average = sum over ranks of weights_r * samples_r / samples, as many as each has seen since the last
                  velocity = outer_momentum * velocity + (average - anchor)
                  anchor = weights = anchor + outer_rate * velocity      (momentum 0, rate 1: just the average)
    at the end    the weights of the run are the average

Cost per step, with n ranks and P bytes of trained parameters and floating buffers: bytes handed over n * P / period,
in every period-th update. Held on each rank: weights, gradients, optimizer state and activations of its shard; with an
outer momentum two copies of the parameters more. A checkpoint holds every rank's optimizer state and, between averages,
its weights. Not exact: between averages ranks go their own ways; with period=1
and plain SGD the average is the step of `single`. Papers: Stich, "Local SGD Converges Fast and Communicates Little",
ICLR 2019; Wang et al., "SlowMo", ICLR 2020.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..data import nest
from ..data.batches import Batch
from ..errors import BadInput
from ..world.devices import default_ranks
from ..world.rank import Rank
from .contract import Loss, Strategy, Traits, Worker, refuse
from .job import Job
from .pieces.flat_buffers import through_flat
from .pieces.optimizer_state import join_states
from .pieces.rank_model import full_weights, place_model
from .pieces.timelines import averaged
from .pieces.units import Units
from .pieces.worker import OrdinaryWorker


@dataclass(frozen=True)
class LocalSGD(Strategy):
    """Ranks train apart and average their weights every `period` updates.

    Args:
        ranks: how many processes train; by default one per GPU, else one per core, at least 2
        period: how many updates lie between two averages
        outer_momentum: momentum of the averages, from 0 to below 1
        outer_rate: how far the weights go towards each average; 1 takes it as it is
        transport: what carries messages between ranks: `auto` chooses among `shm` (shared memory, one host), `gloo`,
            `nccl` (a GPU per rank) and `hosts` (several hosts with several ranks each)

    Example:
        manyhands train glyphs local_sgd:period=16 --ranks 2
    """

    ranks: int = field(default_factory=default_ranks)
    period: int = 8
    outer_momentum: float = 0.0
    outer_rate: float = 1.0
    transport: str = "auto"

    name = "local_sgd"
    summary = "every rank trains its own copy; copies are averaged every few steps"

    def __post_init__(self) -> None:
        if self.period < 1:
            raise BadInput(f"local_sgd:period must be at least 1 (found {self.period})")
        if not 0 <= self.outer_momentum < 1:
            raise BadInput(f"local_sgd:outer_momentum must be at least 0 and below 1 (found {self.outer_momentum:g})")
        if not self.outer_rate > 0:
            raise BadInput(f"local_sgd:outer_rate must be above 0 (found {self.outer_rate:g})")

    @property
    def traits(self) -> Traits:
        return Traits(
            exact="between averages ranks go their own ways",
            transport=self.transport,
            compiles=True,
            timeline=partial(averaged, ranks=self.ranks, period=self.period),
        )

    def check(self, job: Job) -> None:
        if job.settings.sync_batchnorm and job.has_batchnorm:
            raise refuse(self, "lets ranks train apart, so BatchNorm has no common batch; use ddp with sync_batchnorm")

    def setup(self, job: Job, rank: Rank) -> Worker:
        return LocalWorker(self, job, rank)


class LocalWorker(OrdinaryWorker):
    """A rank's own training, and the average."""

    not_captured = Worker.not_captured

    def __init__(self, strategy: LocalSGD, job: Job, rank: Rank):
        model = place_model(job, rank)
        super().__init__(job, rank, model, model, units=Units(job, rank, divided=True))
        self.strategy = strategy
        self.outer = strategy.outer_momentum > 0 or strategy.outer_rate != 1
        self.anchor = self._trained() if self.outer else {}  # the weights of the last average
        self.velocity = {name: torch.zeros_like(tensor) for name, tensor in self.anchor.items()}
        self._seen = self._seen_by_all = 0  # samples since the last average
        self._in_update = 0  # samples of this rank that go into the next update
        self._notes: list[str] = []

    def step(self, batch: Batch | None) -> Loss | None:
        assert batch is not None
        loss = self.add_gradient(batch) if batch.count else None  # an empty shard moves nothing
        self._in_update += batch.count
        self._seen += batch.count
        self._seen_by_all += batch.step.total
        if batch.update:
            self.clock.enter("update")
            self._update()
            if self.updater.updates % self.strategy.period == 0:
                self._meet()
        return loss

    def loss_weight(self, batch: Batch) -> float | Tensor:
        """Gradients are sums over the shard's samples, or units; the update divides by their number."""
        return batch.count if self.units.weight is None else self.units.share(batch) * batch.step.group_total

    def _update(self) -> None:
        """The mean over this rank's own samples, or units, however many batches they came in."""
        for _, parameter in self.updater.named:
            if parameter.grad is not None and self.units.weight is None:
                parameter.grad.div_(self._in_update)
        self.updater.update(scale=self.units.own_scale(1))
        self._in_update = 0

    # ------------------------------------------------------------ meeting the others

    @torch.no_grad()
    def _meet(self) -> None:
        """Average, let the outer momentum act, and go on from the same weights everywhere."""
        tensors = self._averaged_tensors()
        averages = self._average(tensors)
        for number, (name, anchor) in enumerate(self.anchor.items()):
            velocity = self.velocity[name].mul_(self.strategy.outer_momentum).add_(averages[number] - anchor)
            averages[number] = anchor.add_(velocity, alpha=self.strategy.outer_rate)
        for tensor, average in zip(tensors, averages, strict=True):
            tensor.copy_(average)
        self._seen = self._seen_by_all = 0

    @torch.no_grad()
    def _average(self, tensors: list[Tensor]) -> list[Tensor]:
        """Over ranks, weighted by the samples each has seen since the last average; many tensors travel as one."""
        share = self._seen / self._seen_by_all if self._seen_by_all else 1 / self.rank.ranks

        def averaged(flat: Tensor) -> Tensor:
            self.rank.all_reduce(flat.mul_(share))
            return flat

        return through_flat(tensors, averaged)

    def _averaged_tensors(self) -> list[Tensor]:
        """Trained parameters first, then floating buffers (BatchNorm's statistics)."""
        parameters = [parameter for _, parameter in self.updater.named]
        return [*parameters, *(buffer for buffer in self.model.buffers() if buffer.is_floating_point())]

    def _trained(self) -> dict[str, Tensor]:
        return {name: parameter.detach().clone() for name, parameter in self.updater.named}

    # ------------------------------------------------------------ what others see

    @torch.no_grad()
    def weights(self) -> dict[str, Tensor] | None:
        """The average of the copies as they are now; each goes on from where it is."""
        own = self._averaged_tensors() if self._seen_by_all else []  # right after a meeting all are equal
        kept = [tensor.clone() for tensor in own]
        for tensor, average in zip(own, self._average(own), strict=True):
            tensor.copy_(average)
        found = full_weights(self.model) if self.rank.index == 0 else None
        for tensor, value in zip(own, kept, strict=True):
            tensor.copy_(value)
        return found

    def state(self) -> dict[str, Any] | None:
        """Two things: optimizer state averaged as the weights are, with which any strategy goes on from here, and every
        rank's own copy, with which as many ranks go on as if nothing had happened."""
        everyone = self.rank.gather((self._seen, nest.each(self.updater.state(), _stored), self._own()))
        if everyone is None:
            return None
        samples = [seen if self._seen_by_all else 1 for seen, _, _ in everyone]
        state = join_states([state for _, state, _ in everyone], lambda _, values: _mean(values, samples))
        state["copies"] = [
            {"seen": seen, "seen_by_all": self._seen_by_all, "optimizer": state["optimizer"]["state"], "weights": own}
            for seen, state, own in everyone
        ]
        if self.outer:
            state["outer"] = nest.each(self.velocity, _stored)
            state["anchor"] = nest.each(self.anchor, _stored)
        return state

    def _own(self) -> dict[str, Tensor]:
        """What this rank's model alone holds: all of it between averages, after one what is not averaged (counters)."""
        weights = full_weights(self.model)
        if self._seen_by_all:
            return weights
        return {name: value for name, value in weights.items() if not value.is_floating_point()}

    def load(self, weights: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Go on from the rank's own copy; from the average, with which a period begins, where there is none."""
        super().load(weights, state)
        if self.outer:
            self.anchor = self._trained()
            for kept, values in (("outer", self.velocity), ("anchor", self.anchor)):
                for name, value in state.get(kept, {}).items():
                    values[name].copy_(value)
        self._seen = self._seen_by_all = self._in_update = 0
        copies = state.get("copies", [])
        if len(copies) == self.rank.ranks:
            self._load_own(weights, state, copies[self.rank.index])
        elif copies:
            self._notes = [
                f"the checkpoint has the copies of {len(copies)} ranks, so all {self.rank.ranks} went on from their average"
            ]

    def _load_own(self, weights: Mapping[str, Tensor], state: Mapping[str, Any], own: Mapping[str, Any]) -> None:
        self.model.load_state_dict({**weights, **own["weights"]})
        self.updater.optimizer.state.clear()  # a rank without samples so far has none
        self.updater.load({**state, "optimizer": {**state["optimizer"], "state": own["optimizer"]}})
        self._seen, self._seen_by_all = own["seen"], own["seen_by_all"]

    def figures(self) -> dict[str, Any]:
        return {"notes": self._notes} if self.rank.leads else {}


def _stored(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)


def _mean(values: dict[int, Any], samples: list[int]) -> Any:
    """Of the ranks' values of one thing, weighted by samples; what is no floating tensor is the first rank's."""
    found = {rank: value for rank, value in values.items() if samples[rank]} or values
    first, total = next(iter(found.values())), sum(samples[rank] for rank in found)
    if not (total and isinstance(first, Tensor) and first.dim() and first.is_floating_point()):
        return first
    return sum(value * (samples[rank] / total) for rank, value in found.items())
