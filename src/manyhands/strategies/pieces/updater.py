"""The optimizer with its schedule and clipping: one call is one write to the weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...model.optimizers import needs_figure
from ..job import Job
from .average import Average, without_average
from .fused_optimizer import direct_sgd, fuse
from .optimizer_state import load_named_state, named_state


class Updater:
    """The optimizer with its schedule and clipping: one call is one write to the weights."""

    def __init__(
        self,
        job: Job,
        parameters: Iterable[tuple[str, nn.Parameter]],
        norm: Callable[[list[Tensor]], Tensor] | None = None,
        optimizer: Optimizer | None = None,  # already made, where a rank holds only some parameters
    ):
        self.named = list(parameters)
        self.optimizer: Optimizer = optimizer or job.task.optimizer(self.named)
        self.schedule = job.task.schedule(self.optimizer, job.total_updates) if job.task.schedule else None
        self.by_figure = self.schedule is not None and needs_figure(self.schedule)  # moves once per epoch, by its loss
        self.average = Average(job.task.ema, self.named) if job.task.ema is not None else None
        self.clip = job.settings.clip
        self._norm = norm  # of all gradients, where a rank holds only some of them
        self._fusing = job.settings.fuse
        self._average_alone = False
        self.updates = 0
        self.write: Callable[[], Any] = self.optimizer.step  # writes the weights

    def update(self, advance: bool = True, scale: Tensor | None = None) -> None:
        """Clip, write the weights, forget the gradients, move the schedule on (unless more updates make up a step)."""
        self.apply(scale, average=advance)
        self.advance(schedule=advance)

    def apply(self, scale: Tensor | None = None, average: bool = True) -> None:
        """Multiply the gradients with `scale` (units.py), clip, write the weights (and take them into their average),
        forget the gradients."""
        if self._fusing:
            self._fusing = False
            fuse(self.optimizer)
            if all(group.get("fused") for group in self.optimizer.param_groups):
                self.write = direct_sgd(self.optimizer) or self.write
        if scale is not None:
            self._scale(scale)
        if self.clip is not None:
            self._clip(self.clip)
        self.write()
        if self.average is not None and average:
            self.average.update()
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def advance(self, schedule: bool = True) -> None:
        """Count an update and move the schedule on."""
        if schedule:
            self.skip()
        self.updates += 1

    def skip(self) -> None:
        """Move the schedule on, over a step to which this rank had nothing to add."""
        if self.schedule is not None and not self.by_figure:
            self.optimizer._opt_called = True  # type: ignore[attr-defined]  # a first step without an update is no mistake
            self.schedule.step()

    def follow(self, figure: float) -> None:
        """Let a schedule that goes by a figure see that of an epoch."""
        assert self.schedule is not None
        self.schedule.step(figure)  # type: ignore[arg-type]  # ReduceLROnPlateau and the like take it there

    def _scale(self, factor: Tensor) -> None:
        for _, parameter in self.named:
            if parameter.grad is not None:
                parameter.grad.mul_(factor.to(parameter.grad.device))

    def _clip(self, limit: float) -> None:
        gradients = [parameter.grad for _, parameter in self.named if parameter.grad is not None]
        if self._norm is None:
            torch.nn.utils.clip_grad_norm_([parameter for _, parameter in self.named], limit)
            return
        factor = (limit / (self._norm(gradients) + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(factor.to(gradient.device))

    @property
    def learning_rate(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    def state(self) -> dict[str, Any]:
        own = named_state(self.optimizer, self.named)
        if self._average_alone:
            own["state"] = {}
        return {
            "optimizer": own if self.average is None else {**own, "state": self.average.joined(own["state"])},
            "schedule": self.schedule.state_dict() if self.schedule else None,
            "updates": self.updates,
        }

    @contextmanager
    def average_alone(self) -> Iterator[None]:
        """Within it, of all state by parameter there is the average only: the rest need not travel to be left out."""
        self._average_alone = True
        try:
            yield
        finally:
            self._average_alone = False

    def load(self, state: Mapping[str, Any]) -> None:
        stored = state["optimizer"]
        load_named_state(self.optimizer, self.named, {**stored, "state": without_average(stored["state"])})
        if self.average is not None:
            self.average.load(stored["state"])
        if self.schedule is not None and state["schedule"] is not None:
            self.schedule.load_state_dict(state["schedule"])
        self.updates = int(state["updates"])
