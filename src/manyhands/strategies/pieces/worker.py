"""The ordinary step, for strategies that only change where the weights live: alone, or around one of torch's wrappers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor, nn

from ...data.batches import Batch
from ...world.rank import Rank
from ..contract import Loss, Worker
from ..job import Job, trained_parameters
from .batchnorm import mark_empty
from .rank_model import autocast
from .units import Units
from .updater import Updater


class OrdinaryWorker(Worker):
    """Forward, backward, update.

    `model` is what is called (a wrapper may communicate inside), `plain` is the module with the user's names. `hold`
    keeps a wrapper from communicating while gradients are only accumulated.
    """

    not_captured: str | None = None

    def __init__(
        self,
        job: Job,
        rank: Rank,
        model: nn.Module,
        plain: nn.Module,
        hold: Callable[[], AbstractContextManager[Any]] = nullcontext,
        after_backward: Callable[[], None] | None = None,
        norm: Callable[[list[Tensor]], Tensor] | None = None,
        trained: Iterable[tuple[str, nn.Parameter]] | None = None,  # what is updated, where that is not the model's own
        units: Units | None = None,  # None: this rank's own parts make up an update
    ):
        super().__init__(
            job, rank, plain, Updater(job, trained_parameters(plain) if trained is None else trained, norm)
        )
        self.model = model
        self._hold, self._after_backward = hold, after_backward
        several = job.settings.accumulate > 1
        self.units = units or Units(job, rank, divided=several, whole=not several)
        self._loss: Callable[[Any, Any], Tensor] = self.units.loss_of

    def replace_parts(
        self, after_backward: Callable[[], None] | None = None, write: Callable[[], Any] | None = None
    ) -> None:
        """Put something else after each backward pass, and in the place of `optimizer.step`; without arguments both are
        as they were."""
        self._after_backward = after_backward
        self.updater.write = write or self.updater.optimizer.step

    def step(self, batch: Batch | None) -> Loss | None:
        assert batch is not None
        if batch.update:
            loss = self.add_gradient(batch)
        else:
            with self._hold():
                loss = self.add_gradient(batch)
        if batch.update:
            self.clock.enter("update")
            self.updater.update(scale=self.units.scale(batch.step))
        return self.units.judged(loss)

    def add_gradient(self, batch: Batch) -> Loss:
        """Forward and backward of a batch; gradients are added to those that are there."""
        self.clock.enter("forward")
        with autocast(self.job, self.rank.device):
            loss = self.loss_of(batch)
        self.clock.enter("backward")
        weight = self.loss_weight(batch)
        (loss if not isinstance(weight, Tensor) and weight == 1.0 else loss * weight).backward()
        if self._after_backward is not None:
            self._after_backward()
        return Loss(loss.detach(), batch.count, self.units.part)

    def loss_weight(self, batch: Batch) -> float | Tensor:
        return self.units.share(batch)

    def loss_of(self, batch: Batch) -> Tensor:
        return self._loss(self.job.calling.output(self.model, batch.input), batch.target)


class WrappedWorker(OrdinaryWorker):
    """The ordinary step around one of torch's wrappers, which takes the target too, gives the loss, and sums gradients.

    A rank without a sample runs along with a borrowed one, which weighs nothing. If it had none in the whole update,
    what it would add to the sums is taken out as well (`empty`).
    """

    not_captured = Worker.not_captured
    empty = True

    def step(self, batch: Batch | None) -> Loss | None:
        assert batch is not None
        self.empty = self.empty and batch.count == 0
        mark_empty(self.plain, batch.count == 0)
        loss = super().step(batch)
        self.empty = self.empty or batch.update  # the next update begins without a sample
        return loss

    def loss_of(self, batch: Batch) -> Tensor:
        loss: Tensor = self.model(batch.input, batch.target)
        return loss
