"""from_loader(): a task from what a plain training script has at hand.

model, DataLoader, loss, optimizer (and schedule)    as the script makes them
for epoch ...: for batch ...: zero, forward, loss, backward, step     becomes     mh.fit(task, strategy)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ..errors import BadInput
from ..task import Task
from .taken_apart import optimizer_parts, schedule_parts

PER = ("epoch", "update")


def from_loader(
    model: nn.Module | Callable[[], nn.Module],
    loader: Any,
    loss: Callable[..., Tensor] | None,
    optimizer: Optimizer | Callable[..., Optimizer],
    *,
    test: Any = None,
    schedule: LRScheduler | Callable[..., Any] | None = None,
    per: str = "epoch",
    epochs: int = 1,
    **changes: Any,
) -> Task:
    """A Task from the model, DataLoader, loss and optimizer of a script; `changes` are further fields of the Task.

    `per` says when the script steps its schedule: once per "epoch", or per "update" (after every optimizer.step()).
    """
    if per not in PER:
        raise BadInput(f'per says when the schedule moves on: "epoch" or "update" (found {per!r})')
    fields: dict[str, Any] = {"train": loader, "test": test, "optimizer": optimizer, "schedule": schedule}
    if isinstance(optimizer, Optimizer):
        if not isinstance(model, nn.Module):
            raise BadInput(
                "the optimizer belongs to a model that was made already; give that model, or a function for both: "
                f"optimizer=functools.partial({type(optimizer).__name__}, lr=...)"
            )
        fields["optimizer"] = optimizer_parts(optimizer, model, scheduled=isinstance(schedule, LRScheduler))
    if isinstance(schedule, LRScheduler):
        if not isinstance(optimizer, Optimizer):
            raise BadInput(
                f"the {type(schedule).__name__} belongs to an optimizer that was made already; give that optimizer, or a "
                "function for both: schedule=lambda optimizer, total_updates: ..."
            )
        fields["schedule"] = schedule_parts(schedule, optimizer, per_epoch=per == "epoch")
    return Task(model=model, loss=loss, epochs=epochs, **{**fields, **changes})
