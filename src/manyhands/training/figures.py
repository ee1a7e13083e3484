"""What a process of a fit has counted: for checkpoints, for a resumed fit to go on with, and for the record at the end.

each process   since(step)  -> its figures since the last checkpoint        final()  -> those of the whole fit
rank 0         history_of(figures of all), which a checkpoint carries       record_of(figures of all), for the caller
a resume       restore(): the figures go on where the history ends
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence
from typing import Any

import torch

from ..data.batches import Batch
from ..data.order import PlannedStep
from ..record.running_totals import RunningTotals
from ..record.step_losses import as_recorded
from ..record.summary import summarise
from ..strategies.contract import Loss, Worker
from ..world.rank import Rank
from .checkpoints.checkpoint import Checkpoint
from .checkpoints.history import History, share_of_past
from .losses import Losses
from .observers import Observer


class RankFigures(Observer):
    """One process's figures; the history of all is rank 0's, and of every rank that may come to lead.

    `repeats`: others count the samples that this process sees, as it does with a stage of a cut model.
    """

    def __init__(self, rank: Rank, worker: Worker, lockstep: bool, survive: bool, repeats: bool):
        self.rank, self.clock, self.worker = rank, rank.clock, worker
        self.lockstep, self.survive, self.repeats = lockstep, survive, repeats
        self.losses = Losses(rank)
        self.samples = self._past_samples = 0
        self.made = 0  # shares this process has made, its own and others'
        self.helped = 0  # those of slower ranks among them
        self.marks = RunningTotals(self.clock)
        self.history = History()  # of the steps up to the last checkpoint
        self._samples_before = 0  # a resume, by all ranks together
        self._updates_before = self._updates_past = 0  # before a resume: as this process counts them, and in all
        self._resumed_step = 0
        self._resumed_seconds = 0.0  # of the epoch a resumed fit begins in the middle of
        self._epoch_began = 0.0

    def begin_epoch(self) -> None:
        self._epoch_began = self.clock.seconds - self._resumed_seconds
        self._resumed_seconds = 0.0

    def after_work(self, step: PlannedStep, batch: Batch | None, loss: Loss | Sequence[Loss] | None) -> None:
        if batch is not None:
            self.samples += batch.count
            if batch.given_away:
                self.made -= 1
            elif not batch.own:
                self.helped += 1
                self._count_share()
        self.losses.note(loss, step.before)

    def after_step(self, step: PlannedStep) -> None:
        self._count_share()

    def _count_share(self) -> None:
        self.made += 1
        if self.rank.device.type == "cpu":  # the times of a device are known only when the clock stops
            self.marks.note(self.made)
        if self.survive:
            self.rank.board.finish(self.rank.index, self.clock.steps, self.fresh)

    @property
    def fresh(self) -> int:
        """Samples of this launch; a stage sees samples that others count."""
        return 0 if self.repeats or self.rank.serves else self.samples - self._past_samples

    @property
    def epoch_seconds(self) -> float:
        """Time in steps of the epoch so far."""
        return self.clock.seconds - self._epoch_began

    # ------------------------------------------------------------ for checkpoints

    def since(self, step: int) -> dict[str, Any]:
        """What this process measured: totals, and the steps from `step` on one by one."""
        losses, times = self.losses.hand_over(self.clock.steps), self.clock.step_times.since(step)
        return {**self._totals(), "losses": losses, "times": times}

    def history_of(self, everyone: list[dict[str, Any]], epoch_over: bool) -> dict[str, Any]:
        """The history up to now as a checkpoint keeps it, out of what every process measured."""
        history = self.history
        history.samples = self._all_samples(everyone)
        history.updates = self._all_updates(everyone)
        history.epoch_seconds = 0.0 if epoch_over else self.epoch_seconds
        history.add(everyone, self.clock.steps, self.rank.ranks)
        staleness = self._all_staleness(everyone)
        return {**history.stored(), "staleness": staleness["histogram"] if staleness else None}

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on counting where a checkpoint was taken, which the worker has loaded."""
        past = self.history = History.restored(checkpoint.history, checkpoint.number)
        self._updates_before, self._updates_past = self.worker.updates, past.updates
        self._resumed_step, self._resumed_seconds = checkpoint.step, past.epoch_seconds
        mine = share_of_past(past, self.rank)
        self.clock.resume(mine["phases"], past.times, mine["bytes"], mine["overlapped"], mine["late"])
        self.samples = self._past_samples = mine["samples"]
        self.made = mine.get("made", checkpoint.step)
        self._samples_before = past.samples
        self.losses.begin(checkpoint.step)

    # ------------------------------------------------------------ for the record

    def final(self) -> dict[str, Any]:
        """What this process measured in the whole fit."""
        self.marks.end(self.made)
        return {
            **self.clock.figures(),
            **self._totals(),
            "device": str(self.rank.device),
            "host": self.rank.host,
            "steps": self.clock.steps,
            "repeats": self.repeats,
            "helped": self.helped,
            "lockstep": self.lockstep,
            "marks": self.marks.kept,
            "peak_memory_bytes": peak_memory(self.rank.device),
        }

    def record_of(self, everyone: list[dict[str, Any]]) -> dict[str, Any]:
        """The figures of the record, out of what every process measured."""
        record = summarise(everyone, self.rank.ranks)
        if self._resumed_step or self.survive:  # ranks may have been others before, or have died
            record["samples"] = self._all_samples(everyone)
            record["samples_per_second"] = record["samples"] / record["seconds"]
        losses = self.history.losses
        record.update(
            losses=as_recorded(losses.means()),
            steps_per_loss=losses.each,
            updates=self._all_updates(everyone),
            epochs=self.history.epochs,
            test=self.history.test,
            evaluation_seconds=self.history.evaluation_seconds,
            pause_seconds=self.history.pause_seconds,
            staleness=self._all_staleness(everyone),
            notes=[note for item in everyone for note in item["extra"].get("notes", [])],
        )
        if helped := sum(item["helped"] for item in everyone):
            record["notes"].append(
                f"ranks that finished early processed {helped:,} shares of others at the end of epochs"
            )
        return record

    # ------------------------------------------------------------ sums over processes

    def _totals(self) -> dict[str, Any]:
        """What both a checkpoint and the record are summed from."""
        return {
            "rank": self.rank.index,
            "trains": not self.rank.serves,
            "phases": list(self.clock.phases),
            "bytes": self.clock.bytes,
            "overlapped": self.clock.overlapped,
            "late": self.clock.late,
            "samples": self.samples,
            "made": self.made,
            "fresh": self.fresh,
            "updates": self.worker.updates - (0 if self.lockstep else self._updates_before),
            "extra": self.worker.figures(),
        }

    def _all_samples(self, everyone: list[dict[str, Any]]) -> int:
        """Samples behind the weights, those before a resume and those of ranks that died included."""
        lost = self.rank.board.samples_of_lost([item["rank"] for item in everyone]) if self.survive else 0
        return self._samples_before + sum(item["fresh"] for item in everyone) + lost

    def _all_updates(self, everyone: list[dict[str, Any]]) -> int:
        """Writes to the weights by all processes together, those before a resume included."""
        updates = [item["updates"] for item in everyone]
        return max(updates) if self.lockstep else self._updates_past + sum(updates)

    def _all_staleness(self, everyone: list[dict[str, Any]]) -> dict[str, Any] | None:
        """Histograms of staleness (index: updates by others) as mean, maximum and one histogram."""
        parts = [self.history.staleness, *(item["extra"].get("staleness") for item in everyone)]
        known = [part for part in parts if part is not None]
        if not known:
            return None
        size = max(map(len, known))
        histogram = [sum(part[number] for part in known if number < len(part)) for number in range(size)]
        total = sum(histogram)
        highest = max((number for number, count in enumerate(histogram) if count), default=0)
        mean = sum(number * count for number, count in enumerate(histogram)) / total if total else 0.0
        return {"mean": mean, "max": highest, "histogram": histogram[: highest + 1]}


def peak_memory(device: torch.device) -> int:
    """The most this process ever held: resident memory, or CUDA memory where the rank has a GPU."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
