"""The losses of consecutive steps, as a rank notes them and as those of all ranks are put together.

A loss is a mean over units (samples, or tokens): of each step the sum and the units are kept, 16 bytes, so that a step's
loss over all ranks is the sum of sums divided by the sum of units. Fits of a million steps are ordinary.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

MOST_RECORDED = 100_000  # losses in a record: two megabytes


def _numbers() -> array[float]:
    return array("d")


@dataclass
class StepLosses:
    """The steps from `first` on, steps counted from 0."""

    first: int = 0
    sums: array[float] = field(default_factory=_numbers)
    units: array[float] = field(default_factory=_numbers)
    samples: int = 0  # behind all of them

    def note(self, step: int, mean: float, count: int, units: float) -> None:
        """A step's loss; several of one step are put together. One of a step before `first` comes too late."""
        place, known = step - self.first, len(self.sums)
        if place < 0:
            return
        self.samples += count
        if place >= known:
            self.sums.extend([0.0] * (place + 1 - known))
            self.units.extend([0.0] * (place + 1 - known))
        if units:
            self.sums[place] += mean * units
            self.units[place] += units


@dataclass(frozen=True)
class Together:
    """What the ranks noted of the same steps, summed in the order of the ranks."""

    sums: np.ndarray
    units: np.ndarray
    samples: int

    @classmethod
    def of(cls, ranks: Iterable[StepLosses], steps: int) -> Together:
        """Of so many steps; ranks that know nothing of the last ones have noted fewer."""
        sums, units, samples = np.zeros(steps), np.zeros(steps), 0
        for one in ranks:
            known = min(len(one.sums), steps)
            sums[:known] += np.array(one.sums[:known])
            units[:known] += np.array(one.units[:known])
            samples += one.samples
        return cls(sums, units, samples)

    def means(self) -> np.ndarray:
        """The loss of every step, nan where it is not known."""
        return np.divide(self.sums, self.units, out=np.full(len(self.sums), math.nan), where=self.units > 0)


def as_recorded(means: Iterable[float]) -> list[float | None]:
    """As the record has them: None where a loss is not known."""
    return [None if math.isnan(mean) else mean for mean in means]


def in_record(means: Sequence[float]) -> tuple[int, list[float | None]]:
    """How many steps a recorded loss stands for, and the losses: of each step, or the mean of several where there are very
    many steps."""
    each = max(1, -(-len(means) // MOST_RECORDED))
    if each == 1:
        return 1, as_recorded(means)
    rows = -(-len(means) // each)
    padded = np.full(rows * each, math.nan)
    padded[: len(means)] = means
    windows = np.ma.masked_invalid(padded.reshape(rows, each))
    return each, as_recorded(windows.mean(axis=1).filled(math.nan).tolist())
