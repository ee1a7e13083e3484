"""How a fit runs: where, what it keeps, what follows a failure. What a step computes is in `StepSettings`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ..errors import BadInput
from ..record.run_folder import CHECKPOINTS
from ..record.trackers import Chosen, Tracker, trackers_of
from ..record.trackers.log import Logs
from ..strategies.job import StepSettings, check_count
from ..world.engines.choose import On
from ..world.rank import Rank
from .checkpoints.interval import Interval, interval
from .notebook import Cell
from .proof.tried import Tried

Callback = Callable[[Any], Any]  # sees the figures of a step or an epoch; ends the run by returning true
_STEP = {item.name for item in fields(StepSettings)}


@dataclass(frozen=True)
class FitSettings:
    """The keywords of `fit`, and a few more for the command line and the studies. Checked when it is made."""

    step: StepSettings = field(default_factory=StepSettings)
    device: str = "auto"
    threads: int | None = None
    run_dir: str | os.PathLike[str] | None = None
    resume: bool = False
    checkpoint_every: int | str | None = None
    max_restarts: int = 0
    stall_seconds: float | None = None
    on_death: str = "end"
    on_step: Callback | None = None
    on_epoch: Callback | None = None
    progress: bool | Cell = True
    on: On = "local"
    log: Chosen = None  # trackers by name ("wandb,csv") or as objects
    logs: Logs | None = None  # those of a comparison, which ends them itself
    time_limit: float | None = None  # seconds for the whole fit
    tried: Tried | None = field(default=None, repr=False, compare=False)  # of earlier fits of this job, in a study
    command: str | None = None  # for the record: what was typed,
    source: str | None = None  # and what finds the task again
    fault: Callable[[Rank, int], None] | None = (
        None  # called in start-up (step 0) and before every step, until a restart
    )

    @classmethod
    def of(cls, **keywords: Any) -> FitSettings:
        """From keywords as `fit` takes them."""
        step = {name: keywords.pop(name) for name in _STEP & keywords.keys()}
        return cls(StepSettings(**step), **keywords)

    def __post_init__(self) -> None:
        check_count("threads", self.threads)
        for name, asked in (("checkpoint_every", self.every is not None), ("resume", self.resume)):
            if asked and self.run_dir is None:
                raise BadInput(f"{name} needs a folder for checkpoints; give run_dir (--run-dir)")
        if isinstance(self.max_restarts, bool) or not isinstance(self.max_restarts, int) or self.max_restarts < 0:
            raise BadInput(f"max_restarts must be 0 or more (found {self.max_restarts!r})")
        if self.stall_seconds is not None and not self.stall_seconds > 0:
            raise BadInput(f"stall_seconds must be above 0 (found {self.stall_seconds!r})")
        if self.time_limit is not None and not self.time_limit > 0:
            raise BadInput(f"time_limit must be above 0 seconds (found {self.time_limit!r})")
        trackers_of(self.log, self.run_dir)
        if self.on_death not in ("end", "continue"):
            raise BadInput(f'on_death must be "end" or "continue" (found {self.on_death!r})')

    @property
    def every(self) -> Interval | None:
        """Between checkpoints; None where none are written."""
        return interval(self.checkpoint_every)

    @property
    def checkpoints(self) -> Path | None:
        """Their folder, where there may be some."""
        return Path(self.run_dir).absolute() / CHECKPOINTS if self.run_dir is not None else None

    @property
    def trackers(self) -> list[Tracker]:
        """Where the figures are logged."""
        return trackers_of(self.log, self.run_dir)

    @property
    def survives(self) -> bool:
        """Whether ranks go on without a dead one."""
        return self.on_death == "continue"
