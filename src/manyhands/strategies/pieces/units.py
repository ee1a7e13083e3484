"""Units: what a loss is a mean over where that is not samples (tokens, boxes, weights of classes).

    each part    loss * units of the part / samples of the update      ranks, chunks, accumulated steps, as they come
    the update   summed gradient * samples / units of all parts        one number summed over ranks, before clipping

Nothing is scaled where one part makes up an update, and nothing is counted for a task without a weight. A part without
a unit (a shard of nothing but padding) has the loss 0 / 0: no gradient leaves it, and its loss does not count.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from ...data import nest
from ...data.batches import Batch
from ...data.order import PlannedStep
from ...errors import BadInput
from ...model.calling import Calling
from ...world.rank import Rank
from ..contract import Loss
from ..job import Job


def units_of(weight: Callable[[Any], Any], target: Any, device: torch.device | None = None) -> Tensor:
    """How many units a target has, as one number of 64 bits on `device`; what tasks give besides is refused."""
    found = weight(target)
    if isinstance(found, Tensor) and found.numel() == 1 and not found.is_complex():
        on_cpu = found.device.type == "cpu"  # a GPU is asked nothing
        if not on_cpu or _sensible(found.item()):
            return found.detach().reshape(()).to(device or found.device, torch.float64)
        found = found.item()
    elif isinstance(found, Real) and _sensible(found):
        return torch.full((), float(found), dtype=torch.float64, device=device)
    what = (
        f"a tensor of shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"{type(found).__name__} {found!r}"
    )
    raise BadInput(
        f"task.weight must return one number, how many units the loss of these targets is a mean over (found {what[:80]}); "
        "for example weight=lambda target: (target != -100).sum()"
    )


def _sensible(number: Any) -> bool:
    return math.isfinite(number) and number >= 0


def keep_nan_in(output: Any, loss: Tensor, units: Tensor) -> None:
    """Where a part has no unit its loss is 0 / 0: zeros leave it instead of the gradient. Asks the device nothing."""
    if units.device.type == "cpu" and units > 0:
        return
    for leaf in nest.leaves(output):
        if leaf.requires_grad and leaf is not loss:
            leaf.register_hook(lambda gradient: torch.where(units > 0, gradient, torch.zeros_like(gradient)))


def weighted(means: Tensor, units: Tensor) -> Tensor:
    """The mean over the units of all parts, out of each part's; parts without a unit are left out."""
    counted = torch.where(units > 0, means * units, torch.zeros_like(means, dtype=units.dtype))
    return (counted.sum() / units.sum()).to(means.dtype)


class Units:
    """The way to a part's loss that counts its units on the way, for the update under way.

    `divided`: several parts of this rank, or of several ranks, make up an update and are weighed by their units; else a
    part counts as its samples do. `whole`: one part is all of an update, so there is nothing to leave it out of.
    """

    def __init__(self, job: Job, rank: Rank, divided: bool, whole: bool = False):
        self.calling: Calling = job.calling
        self.weight, self._rank = job.weight, rank
        self.divided = divided and job.weight is not None
        self._whole = whole
        self.part: Tensor | None = None  # units of the part that was computed last
        self._empty: Tensor | None = None  # whether the last update had no unit at all, while nobody has asked
        self._sum: Tensor | None = None  # of this rank's parts of the update under way

    def output(self, model: Callable[..., Any], input: Any) -> Any:
        return self.calling.output(model, input)

    def loss_of(self, output: Any, target: Any) -> Tensor:
        loss = self.calling.loss_of(output, target)
        if self.weight is not None:
            units = self.count(target, loss.device)
            if not self._whole:
                keep_nan_in(output, loss, units)
        return loss

    def count(self, target: Any, device: torch.device) -> Tensor:
        assert self.weight is not None
        self.part = units_of(self.weight, target, device)
        return self.part

    def share(self, batch: Batch, samples: int | None = None) -> float | Tensor:
        """What the loss of the last part, of so many samples, counts in the update to which it belongs from here on."""
        real = bool(batch.count)  # a borrowed sample counts nothing
        if not self.divided or self.part is None:
            return (batch.count if samples is None else samples) * real / batch.step.group_total
        counted = self.part * real
        self._sum = counted if self._sum is None else self._sum + counted
        return counted / batch.step.group_total

    def taken(self) -> Tensor:
        """The units of this rank's parts of the update, which is over with this."""
        found, self._sum = self._sum, None
        return torch.zeros((), dtype=torch.float64, device=self._rank.device) if found is None else found

    def scale(self, step: PlannedStep) -> Tensor | None:
        """What the summed gradient of an update is multiplied with; every rank takes part. None: with nothing."""
        if not self.divided:
            return None
        total = self.taken().to(self._rank.device, copy=True)
        self._rank.all_reduce(total)
        return self.scale_from(total, step)

    def scale_from(self, total: Tensor, step: PlannedStep) -> Tensor:
        """The same where the units of all ranks have been summed."""
        self._empty = total == 0
        return correction(step.group_total, total)

    def own_scale(self, samples: int) -> Tensor | None:
        """The same where the parts of this rank alone, of so many samples, make up an update."""
        return correction(samples, self.taken()) if self.divided else None

    def judged(self, loss: Loss) -> Loss:
        """The loss of the step that ended; its units are not a number where no part of the update had any."""
        empty, self._empty = self._empty, None
        if loss.units is None:
            return loss
        if self._whole:
            empty = torch.as_tensor(loss.units == 0)
        return loss if empty is None else loss._replace(units=torch.where(empty, math.nan, loss.units))


def correction(samples: float, units: Tensor) -> Tensor:
    """From a sum in which parts weigh units / samples to the mean over units; without any there is nothing to correct."""
    return samples / torch.where(units > 0, units, 1.0)
