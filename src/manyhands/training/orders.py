"""What a rank is told of the fit beyond the job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..world.rank import Rank
from .checkpoints.checkpoint import Checkpoint
from .checkpoints.interval import Interval


@dataclass(frozen=True)
class RankOrders:
    on_step: bool = False  # the caller looks at every step,
    on_epoch: bool = False  # at every epoch
    logs: bool = False  # and at the loss of each step, told epoch by epoch
    folder: Path | None = None  # where checkpoints go,
    every: Interval | None = None  # how often (None: none are written),
    marker: Path | None = None  # a file of the caller's: who does not see it hands checkpoints over instead,
    task: dict[str, Any] = field(default_factory=dict)  # and which task they are of (same_task.py, conditions.py)
    resume: Checkpoint | None = None  # where to go on from
    faults: tuple[dict[str, Any], ...] = ()  # what happened in earlier attempts of this fit
    survives: bool = False  # ranks go on without a dead one and share its work
    fault: Callable[[Rank, int], None] | None = None  # what chaos does in start-up (step 0) and before every step
