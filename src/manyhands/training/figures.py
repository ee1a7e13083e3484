"""What a fit has counted: for its checkpoints, for a resumed fit to go on with, and for the record at the end.

each process   measured()  -> its figures since the last checkpoint     final()  -> those of the whole fit
rank 0         history_of(figures of all), which a checkpoint carries   record_of(figures of all), which the caller gets
a resume       restore(): the figures go on where the history ends
"""

from __future__ import annotations

import math
import resource
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ..record.running_totals import RunningTotals
from ..record.summary import summarise
from ..strategies.contract import Worker
from ..world.rank import Rank
from .checkpoints.checkpoint import Checkpoint
from .checkpoints.snapshots import History, share_of_past
from .losses import Losses


class Tally:
    """One process's count, and on rank 0 that of all."""

    def __init__(self, rank: Rank, losses: Losses, lockstep: bool, survive: bool):
        self.rank, self.clock, self.losses = rank, rank.clock, losses
        self.lockstep, self.survive = lockstep, survive
        self.repeats = False  # the samples of this process are counted by others
        self.samples = self._past_samples = 0
        self.made = 0  # shares this process has made, its own and others'
        self.helped = 0  # those of slower ranks among them
        self.marks = RunningTotals(self.clock)
        self._samples_before = 0  # a resume, by all ranks together
        self._updates_before = self._updates_past = 0  # before a resume: as this process counts them, and in all
        self._resumed_staleness: list[int] | None = None
        self._resumed_step = 0
        self.epochs: list[dict[str, Any]] = []
        self.test: dict[str, Any] | None = None
        self.evaluation_seconds = 0.0
        self.checkpoint_seconds = 0.0
        self.history = History()  # of the steps up to the last checkpoint

    def begin(self) -> None:
        """The first step is about to be made."""
        self.marks.begin(self.made)

    def share(self, made: bool = True, helping: bool = False) -> None:
        """A share is done: made, or given away to another rank."""
        self.made += made
        self.helped += helping
        if self.rank.device.type == "cpu":  # the times of a device are known only when the clock stops
            self.marks.note(self.made)

    @property
    def fresh(self) -> int:
        """Samples of this launch; a stage sees samples that others count."""
        return 0 if self.repeats or self.rank.serves else self.samples - self._past_samples

    def add_epoch(self, entry: dict[str, Any]) -> None:
        if self.epochs and self.epochs[-1]["epoch"] == entry["epoch"]:  # an earlier attempt ended in this epoch
            self.epochs.pop()
        self.epochs.append(entry)

    # ------------------------------------------------------------ for checkpoints

    def measured(self, worker: Worker, since: int) -> dict[str, Any]:
        """What this process measured: totals, and the steps after `since` one by one."""
        ends = [0, *self.clock.step_ends]
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
            "since": since,
            "updates": self._own_updates(worker),
            "staleness": worker.figures().get("staleness"),
            "losses": [entry for entry in self.losses.kept if entry[0] >= since],
            "durations": [end - begin for begin, end in zip(ends[since:], ends[since + 1 :], strict=False)],
        }

    def history_of(
        self, everyone: list[dict[str, Any]], epoch_seconds: float, faults: Sequence[dict[str, Any]]
    ) -> dict[str, Any]:
        """The history up to now as a checkpoint keeps it, out of what every process measured."""
        history = self.history
        history.samples = self._samples_of(everyone)
        history.updates = self._updates([item.pop("updates") for item in everyone])
        staleness = merge_staleness([self._resumed_staleness, *(item.pop("staleness") for item in everyone)])
        history.add(everyone, self.clock.steps, self.rank.ranks)
        history.epochs, history.test, history.faults = self.epochs, self.test, list(faults)
        history.epoch_seconds = epoch_seconds
        history.evaluation_seconds, history.checkpoint_seconds = self.evaluation_seconds, self.checkpoint_seconds
        return {**history.stored(), "staleness": staleness["histogram"] if staleness else None}

    def restore(self, checkpoint: Checkpoint, updates: int) -> None:
        """Go on counting where a checkpoint was taken; `updates` are those the worker has loaded."""
        past = self.history = History.restored(checkpoint.history)
        self._updates_before, self._updates_past = updates, past.updates
        self._resumed_staleness, self._resumed_step = past.staleness, checkpoint.step
        mine = share_of_past(past, self.rank)
        ends = np.cumsum(np.asarray(past.durations, dtype=np.int64)).tolist()
        self.clock.resume(mine["phases"], ends, mine["bytes"], mine["overlapped"], mine["late"])
        self.samples = self._past_samples = mine["samples"]
        self.made = mine.get("made", checkpoint.step)
        self._samples_before = past.samples
        if self.rank.leads or self.survive:
            self.epochs, self.test = past.epochs, past.test
            self.evaluation_seconds, self.checkpoint_seconds = past.evaluation_seconds, past.checkpoint_seconds
        if self.rank.leads:
            first = checkpoint.step - checkpoint.number  # the epoch's own mean loss is still to come
            for step in range(first, checkpoint.step):
                if past.counts[step]:
                    self.losses.kept.append((step, past.losses[step], past.counts[step]))

    # ------------------------------------------------------------ for the record

    def final(self, worker: Worker) -> dict[str, Any]:
        """What this process measured in the whole fit."""
        self.marks.end(self.made)
        return {
            **self.clock.figures(),
            "rank": self.rank.index,
            "device": str(self.rank.device),
            "host": self.rank.host,
            "steps": self.clock.steps,
            "samples": self.samples,
            "repeats": self.repeats,
            "made": self.made,
            "helped": self.helped,
            "lockstep": self.lockstep,
            "marks": self.marks.kept,
            "fresh": self.fresh,
            "losses": self.losses.kept,
            "peak_memory_bytes": peak_memory(self.rank.device),
            "updates": self._own_updates(worker),
            "extra": worker.figures(),
        }

    def record_of(self, everyone: list[dict[str, Any]]) -> dict[str, Any]:
        """The figures of the record, out of what every process measured."""
        extras = [item["extra"] for item in everyone]
        record = summarise(everyone, self.rank.ranks)
        resumed = self._resumed_step
        if resumed or self.survive:  # ranks may have been others before, or have died
            record["samples"] = self._samples_of(everyone)
            record["samples_per_second"] = record["samples"] / record["seconds"]
        record["losses"][:resumed] = [None if math.isnan(loss) else loss for loss in self.history.losses[:resumed]]
        record.update(
            updates=self._updates([item["updates"] for item in everyone]),
            epochs=self.epochs,
            test=self.test,
            evaluation_seconds=self.evaluation_seconds,
            staleness=merge_staleness([self._resumed_staleness, *(extra.get("staleness") for extra in extras)]),
            notes=[note for extra in extras for note in extra.get("notes", [])],
        )
        if helped := sum(item["helped"] for item in everyone):
            record["notes"].append(f"ranks that were done early made {helped:,} shares of others at the end of epochs")
        return record

    # ------------------------------------------------------------ sums over processes

    def _samples_of(self, everyone: list[dict[str, Any]]) -> int:
        """Samples behind the weights, those before a resume and those of ranks that died included."""
        lost = self.rank.board.samples_of_lost([item["rank"] for item in everyone]) if self.survive else 0
        return self._samples_before + sum(item["fresh"] for item in everyone) + lost

    def _own_updates(self, worker: Worker) -> int:
        return worker.updates if self.lockstep else worker.updates - self._updates_before

    def _updates(self, everyone: list[int]) -> int:
        """Writes to the weights by all processes together, those before a resume included."""
        return max(everyone) if self.lockstep else self._updates_past + sum(everyone)


def peak_memory(device: torch.device) -> int:
    """The most this process ever held: resident memory, or CUDA memory where the rank has a GPU."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def merge_staleness(parts: list[list[int] | None]) -> dict[str, Any] | None:
    """Histograms of staleness (index: updates by others) into mean, maximum and one histogram."""
    known = [part for part in parts if part is not None]
    if not known:
        return None
    size = max(len(part) for part in known)
    histogram = [sum(part[number] if number < len(part) else 0 for part in known) for number in range(size)]
    total = sum(histogram)
    highest = max((number for number, count in enumerate(histogram) if count), default=0)
    mean = sum(number * count for number, count in enumerate(histogram)) / total if total else 0.0
    return {"mean": mean, "max": highest, "histogram": histogram[: highest + 1]}
