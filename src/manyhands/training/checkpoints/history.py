"""History: what a fit had measured up to a step, merged over its processes; a checkpoint carries it along."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ...record.run import PHASES
from ...record.summary import sum_losses
from ...world.rank import Rank

TOTALS = ("rank", "trains", "phases", "bytes", "overlapped", "late", "samples", "made", "fresh")  # kept per process


@dataclass
class History:
    """What was measured up to a step, merged over ranks; rank 0 keeps it."""

    losses: list[float] = field(default_factory=list)  # mean of each step, nan where unknown
    counts: list[int] = field(default_factory=list)  # samples behind them
    units: list[float] = field(default_factory=list)  # what they are means over; samples in older checkpoints
    durations: list[int] = field(default_factory=list)  # nanoseconds of each step, mean over ranks
    epochs: list[dict[str, Any]] = field(default_factory=list)
    test: dict[str, Any] | None = None
    ema_test: dict[str, Any] | None = None  # of the averaged weights
    epoch_seconds: float = 0.0  # of the epoch that goes on
    evaluation_seconds: float = 0.0
    checkpoint_seconds: float = 0.0
    pause_seconds: float = 0.0  # between epochs, beside evaluation and checkpoints
    updates: int = 0
    samples: int = 0  # of all ranks, the dead included
    staleness: list[int] | None = None
    faults: list[dict[str, Any]] = field(default_factory=list)
    per_rank: list[dict[str, Any]] = field(default_factory=list)  # every process: phases, bytes, samples, ...

    def add(self, everyone: Sequence[dict[str, Any]], steps: int, ranks: int) -> None:
        """Append the steps that the processes report since the last time."""
        first = len(self.losses)
        sums, counts, units = sum_losses(everyone, first, steps)
        self.losses += np.where(units > 0, sums / np.where(units > 0, units, 1), math.nan).tolist()
        self.counts += counts.tolist()
        self.units += units.tolist()
        trained = np.array([item["durations"] for item in everyone if item["rank"] < ranks])
        self.durations += trained.mean(axis=0).astype(np.int64).tolist()
        self.per_rank = [{name: item[name] for name in TOTALS} for item in everyone]

    def add_epoch(self, entry: dict[str, Any]) -> None:
        if self.epochs and self.epochs[-1]["epoch"] == entry["epoch"]:  # an earlier attempt ended in this epoch
            self.epochs.pop()
        self.epochs.append(entry)

    def stored(self) -> dict[str, Any]:
        """As plain data; long lists as tensors, which are written without holding the interpreter."""
        return {
            **vars(self),
            "epochs": list(self.epochs),  # it is written while training goes on
            "losses": torch.tensor(self.losses, dtype=torch.float64),
            "counts": torch.tensor(self.counts, dtype=torch.int64),
            "units": torch.tensor(self.units, dtype=torch.float64),
            "durations": torch.tensor(self.durations, dtype=torch.int64),
        }

    @classmethod
    def restored(cls, stored: dict[str, Any]) -> History:
        lists = {name: value.tolist() for name, value in stored.items() if isinstance(value, torch.Tensor)}
        return cls(**{"samples": sum(lists["counts"]), "units": lists["counts"], **stored, **lists})


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
