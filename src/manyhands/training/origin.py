"""Where a fit starts from: scratch, what `resume` finds, or its own last checkpoint where somebody has started it again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..record.run import Run
from ..strategies.job import Job
from ..strategies.pieces.average import holds_average
from ..world.engines.engine import Engine
from ..world.engines.requeue import first_used, requeues
from .checkpoints.checkpoint import CONDITIONS, Checkpoint
from .checkpoints.conditions import changes, conditions
from .checkpoints.resuming import earlier, newest, put_aside, written_between
from .checkpoints.same_task import fingerprint, refuse_other_task
from .settings import FitSettings

RANKS_CHANGED = "ranks changed"  # the kind of an entry in `faults`


class Origin:
    """Looks for checkpoints on the caller's side, and says in the record what was found."""

    def __init__(self, job: Job, settings: FitSettings, engine: Engine, run: Run, hear: Callable[[str, Any], None]):
        self.job, self.settings, self.engine, self.record, self.hear = job, settings, engine, run, hear
        self.task: dict[str, Any] = {}  # what checkpoints of this fit say of it
        self.not_ours = 0  # restarts that Slurm has made

    def find(self, ranks: int) -> Checkpoint | None:
        """From what `resume` asks for; else, where the ranks were started again for us, from this fit's own."""
        every, folder = self.settings.every, self.settings.checkpoints
        if every is not None or self.settings.resume:
            self.task = {**fingerprint(self.job), CONDITIONS: conditions(self.job)}
        found = self._resumable() if self.settings.resume else None
        if found is None and every is not None and folder is not None:
            found = self._of_an_earlier_start(folder, ranks)
        return found

    def _of_an_earlier_start(self, folder: Path, ranks: int) -> Checkpoint | None:
        """This fit's own last checkpoint, where torchrun has started it again, or Slurm the job it runs in."""
        engine, requeued = self.engine, first_used(folder.parent)
        if not written_between(folder, engine.began, engine.born):
            if requeued is None or not written_between(folder, requeued, time.time()):
                return None  # it died before its first: these are of another run
            self.record.restarts = self.not_ours = requeues()
        found = self.last()
        if found is not None:
            self._taken_over(found, ranks)
        return found

    def _taken_over(self, found: Checkpoint, ranks: int) -> None:
        """This fit goes on in new processes, maybe on more or fewer hosts than before."""
        if found.ranks != ranks:
            text = f"continues with {ranks} rank{'s' * (ranks != 1)} instead of {found.ranks} from step {found.step}"
            self.hear("fault", ranks_changed(text, found.ranks, ranks, found.step))
        if found.path is not None:
            with suppress(OSError):
                os.utime(found.path)  # for those who take over from us, on a host that came after it was written

    def _resumable(self) -> Checkpoint | None:
        """The last checkpoint, else one of a run before it that was put aside."""
        folder = self.settings.checkpoints
        assert folder is not None
        found = self.last()
        if found is None:
            found = earlier(folder, self.task)
            if found is None:
                self._note(f"no checkpoint to resume from in {folder}: starting from scratch")
                return None
            self._note(f"no checkpoint to resume from in {folder}: using one of an earlier run")
            self._goes_on_from(found)
        for change in changes(found.task.get(CONDITIONS) or {}, self.task[CONDITIONS]):
            self._note(
                f"the checkpoint was made under other conditions: {change}; training continues with the new ones"
            )
        if self.job.task.ema is not None and not holds_average(found.state):
            self._note("the checkpoint holds no average of the weights (ema): it begins with the next update")
        if found.step >= self.job.total_steps:
            self._note(
                f"nothing is left to train: the checkpoint is of step {found.step} and {self.job.total_steps} steps are "
                "asked for; these are its weights"
            )
        return found

    def last(self) -> Checkpoint | None:
        """The newest whole checkpoint of this fit."""
        folder = self.settings.checkpoints
        found = newest(folder, self._note) if folder is not None else None
        if found is not None:
            refuse_other_task(found, self.task)
            self._goes_on_from(found)
        return found

    def _goes_on_from(self, found: Checkpoint) -> None:
        run, where = self.record, {"step": found.step, "epoch": found.epoch + 1}
        run.resumed_from = {**where, "strategy": found.strategy, "ranks": found.ranks}
        run.faults = run.faults or found.history["faults"]
        run.epochs = [entry for entry in run.epochs if entry["epoch"] <= found.epoch]
        self._note(f"resuming after step {found.step} from {found.path}")

    def make_room(self) -> None:
        """Put the checkpoints of an earlier run aside: this one starts from scratch and writes its own."""
        folder = self.settings.checkpoints
        aside = put_aside(folder) if folder is not None and self.settings.every is not None else None
        if aside is not None:
            self._note(f"starting from scratch: the checkpoints of an earlier run are now in {aside}")

    def _note(self, text: str) -> None:
        self.hear("note", text)


def ranks_changed(text: str, before: int, now: int, step: int) -> dict[str, Any]:
    """An entry of `faults`."""
    nobody = dict.fromkeys(("rank", "step", "phase", "host", "detected_seconds", "resumed_seconds"))
    return {**nobody, "kind": RANKS_CHANGED, "message": text, "from": before, "to": now, "resumed_step": step}
