"""History: what a fit had measured up to a step, merged over its processes; a checkpoint carries it along."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...record.run import PHASES
from ...record.step_losses import StepLosses, together
from ...record.step_times import StepTimes
from ...world.rank import Rank

TOTALS = ("rank", "trains", "phases", "bytes", "overlapped", "late", "samples", "made", "fresh")  # kept per process


@dataclass
class History:
    """What was measured up to a step, merged over ranks; rank 0 keeps it."""

    losses: StepLosses = field(default_factory=StepLosses)  # of all ranks together
    noted: int = 0  # steps whose losses those are
    times: StepTimes = field(default_factory=StepTimes)  # mean over ranks
    epochs: list[dict[str, Any]] = field(default_factory=list)
    test: dict[str, Any] | None = None
    ema_test: dict[str, Any] | None = None  # of the averaged weights
    epoch_seconds: float = 0.0  # of the epoch that goes on,
    epoch_sum: float = 0.0  # the sum of its losses,
    epoch_units: float = 0.0  # what they are means over,
    epoch_samples: int = 0  # and the samples behind them
    evaluation_seconds: float = 0.0
    checkpoint_seconds: float = 0.0
    pause_seconds: float = 0.0  # between epochs, beside evaluation and checkpoints
    updates: int = 0
    samples: int = 0  # of all ranks, the dead included
    staleness: list[int] | None = None
    faults: list[dict[str, Any]] = field(default_factory=list)
    per_rank: list[dict[str, Any]] = field(default_factory=list)  # every process: phases, bytes, samples, ...

    def add_losses(self, everyone: Sequence[StepLosses], steps: int) -> None:
        """Append those of the steps that the processes have handed over now, up to `steps`."""
        found = together(everyone, self.noted, steps)
        self.losses.add(found, steps)
        self.noted = steps
        self.epoch_sum += float(np.sum(found.sums))
        self.epoch_units += float(np.sum(found.units))
        self.epoch_samples += found.samples

    def add(self, everyone: Sequence[dict[str, Any]], steps: int, ranks: int) -> None:
        """Append the steps that the processes report since the last checkpoint."""
        self.add_losses([item["losses"] for item in everyone], steps)
        self.times.extend(StepTimes.mean([item["times"] for item in everyone if item["rank"] < ranks]))
        self.per_rank = [{name: item[name] for name in TOTALS} for item in everyone]

    @property
    def epoch_loss(self) -> float | None:
        """The mean over all samples, or units, of the epoch that goes on."""
        return self.epoch_sum / self.epoch_units if self.epoch_units else None

    def add_epoch(self, entry: dict[str, Any]) -> None:
        if self.epochs and self.epochs[-1]["epoch"] == entry["epoch"]:  # an earlier attempt ended in this epoch
            self.epochs.pop()
        self.epochs.append(entry)

    def begin_epoch(self) -> None:
        """The one before is over, not only ended for now."""
        self.epoch_sum, self.epoch_units, self.epoch_samples = 0.0, 0.0, 0

    def stored(self) -> dict[str, Any]:
        """As plain data; long lists as tensors, which are written without holding the interpreter."""
        plain = {name: value for name, value in vars(self).items() if name != "losses"}
        return {
            **plain,
            "epochs": list(self.epochs),  # it is written while training goes on
            "loss_sums": _tensor(self.losses.sums),
            "loss_units": _tensor(self.losses.units),
            "steps_per_loss": self.losses.each,
            "durations": _tensor(self.times.kept),
            "times": {"each": self.times.each, "steps": self.times.steps},
        }

    @classmethod
    def restored(cls, stored: dict[str, Any], number: int) -> History:
        """What a checkpoint carried that was taken after `number` steps of an epoch."""
        known = {name: value for name, value in stored.items() if name in cls.__dataclass_fields__}
        kept = stored["durations"].long()
        times = StepTimes(kept=_array("q", kept), **stored.get("times", {"steps": len(kept)}))
        if "losses" in stored:  # an older one holds the mean of every step
            means = stored["losses"].double()
            sums, units, each, noted = means.nan_to_num(), (~means.isnan()).double(), 1, len(means)
        else:
            sums, units, each, noted = (stored[name] for name in ("loss_sums", "loss_units", "steps_per_loss", "noted"))
        losses = StepLosses(0, _array("d", sums), _array("d", units), each=each)
        return cls(**{**_epoch_of_older(stored, number), **known, "losses": losses, "noted": noted, "times": times})


def _tensor(values: array[Any]) -> Tensor:
    return torch.from_numpy(np.array(values))


def _array(kind: str, values: Tensor) -> array[Any]:
    return array(kind, values.numpy().tobytes())


def _epoch_of_older(stored: dict[str, Any], number: int) -> dict[str, Any]:
    """Older checkpoints have samples, and the newer of them units, of every step instead of sums over the epoch."""
    if "counts" not in stored:
        return {}
    losses, counts = stored["losses"].double(), stored["counts"]
    since = len(losses) - number
    units = stored.get("units", counts).double()[since:]
    return {
        "samples": int(counts.sum()),
        "epoch_sum": float((losses[since:] * units)[units > 0].sum()),
        "epoch_units": float(units.sum()),
        "epoch_samples": int(counts[since:].sum()),
    }


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
