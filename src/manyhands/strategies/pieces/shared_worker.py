"""The worker of ranks that write updates of their own into shared weights: the piece under `locked` and `hogwild`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...data.batches import Batch
from ...record.run import PHASES
from ...world.rank import Rank
from ..contract import Loss, Worker
from ..job import Job
from .batchnorm import average_buffers, average_notes
from .optimizer_state import use_shared_state
from .shared_weights import SharedModel
from .units import Units
from .worker import OrdinaryWorker

COMPUTING = [PHASES.index(name) for name in ("forward", "backward", "update")]


class SharedWorker(OrdinaryWorker):
    """Reads shared weights, computes a gradient, writes its update into them; who writes when is the strategy's."""

    not_captured = Worker.not_captured

    def __init__(self, job: Job, rank: Rank, scale: str = "global", sums: bool = False):
        assert rank.shared is not None
        self.shared = SharedModel(job.model, rank.ranks, rank.shared)
        model = self.shared.attach(rank.index, rank.device).train()
        units = Units(job, rank, divided=sums or job.settings.accumulate > 1)
        super().__init__(job, rank, model, model, trained=self.shared.home.items(), units=units)
        use_shared_state(self.updater.optimizer, self.updater.named, rank.shared)
        self._scale, self._clip = scale, job.settings.clip
        self._group = 0  # samples of this rank in the update that is being accumulated
        self._finite = True  # the losses behind the gradient that is being accumulated
        self._computing: Any = rank.shared["computing"].numpy()[:, 0]

    def read(self) -> None:
        """The weights of a new update are read from here on."""
        if self._group == 0:
            with self.clock.during("communication"):
                self.clock.count(self.shared.read())

    def gradient(self, batch: Batch) -> Loss:
        """Add this shard's gradient to the accumulated one; an empty shard adds nothing."""
        self._group += batch.count
        if batch.count == 0:
            return Loss(0.0, 0)
        loss = self.add_gradient(batch)
        assert isinstance(loss.mean, Tensor)
        if loss.mean.device.type == "cpu" and not math.isfinite(loss.mean.item()) and loss.units != 0:
            self._finite = False
        return loss

    def write(self, batch: Batch) -> None:
        """One update with this rank's gradient alone."""
        share, samples = self._group / batch.step.group_total, self._group
        self._group = 0
        if share == 0:
            self.updater.skip()
            return
        if not self._finite:
            return  # this rank ends the run now; others must not find it in their weights first and take the blame
        scale = self.units.own_scale(samples)  # the mean over this rank's units, times its share of the samples
        self.clock.count(self.shared.hand_over())
        if self._scale == "shard":
            gradients = [home.grad for home in self.shared.home.values() if home.grad is not None]
            for gradient in gradients:
                gradient.mul_(1 / share)
            share = 1.0
        if self._clip is not None:
            self.updater.clip = self._clip * share  # the limit is for the mean over samples
        self.clock.enter("update")
        self.updater.update(advance=batch.own, scale=scale)
        self.shared.wrote()
        self.clock.enter("other")
        self._computing[self.rank.index] = sum(self.clock.phases[number] for number in COMPUTING)

    def weights(self) -> dict[str, Tensor] | None:
        self.shared.read()
        averaged = average_buffers(self.rank, self.plain) if self.job.has_batchnorm else {}
        found = super().weights()
        return None if found is None else {**found, **averaged}

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        self.plain.load_state_dict(dict(weights))
        for name, home in self.shared.home.items():
            home.copy_(weights[name])
        self.updater.load(state)
        assert self.rank.shared is not None
        use_shared_state(self.updater.optimizer, self.updater.named, self.rank.shared)

    def overlap(self) -> float | None:
        """How many ranks computed at the same time, on average (after a barrier)."""
        elapsed = sum(self.clock.phases)
        return float(self._computing.sum()) / elapsed if elapsed else None

    def figures(self) -> dict[str, Any]:
        found: dict[str, Any] = {"staleness": self.shared.staleness, "notes": []}
        if self.rank.leads:
            number = self.overlap()
            if number is not None:
                found["notes"].append(
                    f"overlap: on average {number:.2f} of {self.rank.ranks} ranks computed at the same time"
                )
            found["notes"] += average_notes(self.job, self.rank)
        return found
