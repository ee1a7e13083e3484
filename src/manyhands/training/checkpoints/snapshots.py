"""Snapshots: from a running fit to a checkpoint and back.

A snapshot is taken after a step that wrote the weights, with all processes paused after that same step. So every
sample before it is in the weights and none after it, for asynchronous strategies too. What was measured so far
goes along: the record of a resumed run is that of the whole run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...data.order import Order, Step
from ...record.run import PHASES
from ...strategies.contract import Strategy, Worker
from ...strategies.job import Job
from ...world.rank import Rank
from .checkpoint import CONDITIONS, Checkpoint
from .interval import Interval
from .same_task import fingerprint
from .writer import Writer

AGREE_STEPS = 10  # ranks of several hosts share no board: they agree on a checkpoint every so many steps


@dataclass(frozen=True)
class Keeping:
    """Where checkpoints go, and how often; without an interval only a resumed fit reads them."""

    folder: Path
    every: Interval
    conditions: dict[str, Any] = field(default_factory=dict)  # what the checkpoints are made under (conditions.py)


@dataclass
class History:
    """What was measured up to a step, merged over ranks; rank 0 keeps it."""

    losses: list[float] = field(default_factory=list)  # mean of each step, nan where unknown
    counts: list[int] = field(default_factory=list)  # samples behind them
    durations: list[int] = field(default_factory=list)  # nanoseconds of each step, mean over ranks
    epochs: list[dict[str, Any]] = field(default_factory=list)
    test: dict[str, Any] | None = None
    epoch_seconds: float = 0.0  # of the epoch that goes on
    evaluation_seconds: float = 0.0
    checkpoint_seconds: float = 0.0
    updates: int = 0
    samples: int = 0  # of all ranks, the dead included
    staleness: list[int] | None = None
    faults: list[dict[str, Any]] = field(default_factory=list)
    per_rank: list[dict[str, Any]] = field(default_factory=list)  # every process: phases, bytes, samples, ...

    def add(self, everyone: Sequence[dict[str, Any]], steps: int, ranks: int) -> None:
        """Append the steps that the processes report since the last time."""
        first = len(self.losses)
        sums, counts = np.zeros(steps - first), np.zeros(steps - first, dtype=np.int64)
        for item in everyone:
            for step, mean, count in item.pop("losses"):
                if step >= first and count:
                    sums[step - first] += mean * count
                    counts[step - first] += count
        self.losses += np.where(counts > 0, sums / np.maximum(counts, 1), math.nan).tolist()
        self.counts += counts.tolist()
        durations = [item.pop("durations") for item in everyone]
        trained = np.array([own for item, own in zip(everyone, durations, strict=True) if item["rank"] < ranks])
        self.durations += trained.mean(axis=0).astype(np.int64).tolist()
        self.per_rank = list(everyone)

    def stored(self) -> dict[str, Any]:
        """As plain data; long lists as tensors, which are written without holding the interpreter."""
        return {
            **vars(self),
            "losses": torch.tensor(self.losses, dtype=torch.float64),
            "counts": torch.tensor(self.counts, dtype=torch.int64),
            "durations": torch.tensor(self.durations, dtype=torch.int64),
        }

    @classmethod
    def restored(cls, stored: dict[str, Any]) -> History:
        lists = {name: value.tolist() for name, value in stored.items() if isinstance(value, torch.Tensor)}
        return cls(**{"samples": sum(lists["counts"]), **stored, **lists})


class Snapshots:
    """When a checkpoint is due, and how it is taken. Every process of a fit has one."""

    def __init__(self, keeping: Keeping, job: Job, strategy: Strategy, rank: Rank, resumed: Checkpoint | None):
        self.every = keeping.every
        self.job, self.strategy, self.rank = job, strategy, rank
        self.last = resumed.step if resumed else 0
        self._last_time = time.monotonic()
        self._order: Order = job.order
        self._task = {**fingerprint(job), CONDITIONS: keeping.conditions}
        self._writer: Writer | None = None  # made by the rank that leads
        self._folder, self._own = keeping.folder, [resumed.step] if resumed else []

    def due(self, step: Step, done: int) -> bool:
        """Whether every process pauses for a checkpoint after this step; all of them answer alike."""
        if self.every.steps is not None:
            return step.update and done // self.every.steps > self.last // self.every.steps
        if self.rank.processes == 1:
            return step.update and self._time_is_up()
        if self.rank.hosts > 1:
            return step.update and done - self.last >= AGREE_STEPS and bool(self.rank.agree(self._time_is_up()))
        board = self.rank.board
        with board.locked():
            board.finish(self.rank.index, done)
            if self.rank.leads and board.checkpoint_after < done and self._time_is_up():
                board.checkpoint_after = self._update_from(board.first_common(self.rank.index, done))
        return board.checkpoint_after == done

    def _time_is_up(self) -> bool:
        assert self.every.seconds is not None
        return time.monotonic() - self._last_time >= self.every.seconds

    def _update_from(self, step: int) -> int:
        """The first step from this one on (both counted from 1) after which the weights are written."""
        epoch, number = divmod(step - 1, self._order.steps_per_epoch)
        group = number // self._order.accumulate + 1
        return epoch * self._order.steps_per_epoch + min(group * self._order.accumulate, self._order.steps_per_epoch)

    def take(self, worker: Worker, history: dict[str, Any] | None, done: int, epoch: int, number: int) -> None:
        """Gather weights and state from every process and start writing them; rank 0 gives the history."""
        weights, state = worker.weights(), worker.state()
        self.last, self._last_time = done, time.monotonic()
        if not self.rank.leads or weights is None or state is None or history is None:
            return  # (None on one that has come to lead only now: the next checkpoint is its own)
        name, ranks = str(self.strategy), self.strategy.ranks
        self._writer = self._writer or Writer(self._folder, self._failed, self._own)
        self._writer.write(Checkpoint(done, epoch, number, weights, state, history, self._task, name, ranks))

    def finish(self) -> None:
        """Wait until the last checkpoint is on the disk."""
        if self._writer is not None:
            self._writer.wait()

    def _failed(self, step: int, reason: str) -> None:
        text = f"the checkpoint after step {step} was not written: {reason}; training goes on, earlier ones are whole"
        fault = {"kind": "checkpoint", "rank": self.rank.index, "step": step, "phase": "checkpoint", "message": text}
        self.rank.tell("fault", fault)


def share_of_past(history: History, rank: Rank) -> dict[str, Any]:
    """What one process had measured before; the mean of all where their number has changed."""
    past = history.per_rank
    if len(past) == rank.processes and sum(item["trains"] for item in past) == rank.ranks:
        return past[rank.index]
    trained = [item for item in past if item["trains"]]
    if rank.serves or not trained:
        return {"phases": [0] * len(PHASES), "bytes": 0, "overlapped": 0, "late": 0, "samples": 0}
    samples = sum(item["samples"] for item in past)
    return {
        "phases": [sum(item["phases"][number] for item in trained) // len(trained) for number in range(len(PHASES))],
        "bytes": sum(item["bytes"] for item in past) // rank.ranks,
        "overlapped": sum(item["overlapped"] for item in trained) // len(trained),
        "late": 0,
        "samples": samples // rank.ranks + (samples % rank.ranks if rank.index == 0 else 0),
    }
