"""The losses of consecutive steps, as a rank notes them and as those of all ranks are put together, in bounded memory.

A loss is a mean over units (samples, or tokens): of each step the sum and the units are kept, 16 bytes, so that a step's
loss over all ranks is the sum of sums divided by the sum of units. Of a long fit each sum is that of two steps, then of
four, ...: steps of the same numbers for every rank.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

MOST = 100_000  # losses that are kept, and recorded: two megabytes


def _numbers() -> array[float]:
    return array("d")


@dataclass
class StepLosses:
    """The steps from `first` on, steps counted from 0; a place stands for `each` steps from a multiple of it on."""

    first: int = 0
    sums: array[float] = field(default_factory=_numbers)
    units: array[float] = field(default_factory=_numbers)
    samples: int = 0  # behind all of them
    each: int = 1

    def note(self, step: int, mean: float, count: int, units: float) -> None:
        """A step's loss; several of one step are put together. One of a step before `first` comes too late."""
        if step < self.first:
            return
        self.samples += count
        place = self._room(step)
        if units:
            self.sums[place] += mean * units
            self.units[place] += units

    def _room(self, step: int) -> int:
        """The place of a step, which is there now."""
        place = step // self.each - self.first // self.each
        while place >= MOST:
            self.thin(2 * self.each)
            place = step // self.each - self.first // self.each
        if (missing := place + 1 - len(self.sums)) > 0:
            self.sums.extend([0.0] * missing)
            self.units.extend([0.0] * missing)
        return place

    def thin(self, each: int) -> None:
        """Put so many steps together, a power of two."""
        while self.each < each:
            odd = self.first // self.each % 2
            self.sums, self.units = (_in_pairs(values, odd) for values in (self.sums, self.units))
            self.each *= 2

    def add(self, later: StepLosses, steps: int) -> None:
        """What was noted of steps from `later.first` on, up to so many in all."""
        later = StepLosses(later.first, later.sums, later.units, later.samples, later.each)
        if steps > self.first:
            self._room(steps - 1)  # also where nothing is known of the last ones
        each = max(self.each, later.each)
        for one in (self, later):
            one.thin(each)
        start = later.first // each - self.first // each
        count = min(len(later.sums), len(self.sums) - start)
        if count > 0:
            for mine, theirs in ((self.sums, later.sums), (self.units, later.units)):
                np.frombuffer(mine)[start : start + count] += np.frombuffer(theirs)[:count]
        self.samples += later.samples

    def means(self, since: int = 0) -> np.ndarray:
        """The losses, from that of step `since` on; nan where it is not known."""
        start = max(0, since // self.each - self.first // self.each)
        sums, units = (np.array(values[start:]) for values in (self.sums, self.units))
        return np.divide(sums, units, out=np.full(len(sums), math.nan), where=units > 0)


def _in_pairs(values: array[float], odd: int) -> array[float]:
    """The sums of neighbours, where the first has none if `odd`."""
    padded = np.zeros(len(values) + odd + (len(values) + odd) % 2)
    padded[odd : odd + len(values)] = values
    return array("d", padded.reshape(-1, 2).sum(axis=1).tobytes())


def together(ranks: Iterable[StepLosses], first: int, steps: int) -> StepLosses:
    """What the ranks noted of the steps from `first` up to `steps`, summed in the order of the ranks."""
    found = StepLosses(first)
    for one in ranks:
        found.add(one, steps)
    if steps > first:
        found._room(steps - 1)
    return found


def as_recorded(means: np.ndarray) -> list[float | None]:
    """As the record has them: plain numbers, None where a loss is not known."""
    return [None if math.isnan(mean) else mean for mean in means.tolist()]
