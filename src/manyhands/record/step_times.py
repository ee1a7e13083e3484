"""How long steps took, in bounded memory: of every step, and of a long fit of every second, fourth, ... one.

Which steps are kept depends on their numbers alone, so those of several ranks are of the same steps.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

MOST = 100_000  # of a fit: medians and tails of more would not say more


def _numbers() -> array[int]:
    return array("q")


@dataclass
class StepTimes:
    """Nanoseconds of steps from `first` on, steps counted from 0: those that `each` divides."""

    first: int = 0
    each: int = 1
    kept: array[int] = field(default_factory=_numbers)
    steps: int = 0  # those before `first` included

    def __post_init__(self) -> None:
        self.steps = max(self.steps, self.first)

    def note(self, took: int) -> None:
        """Of the next step."""
        if self.steps % self.each == 0:
            self.kept.append(took)
            if len(self.kept) > MOST:
                self.thin(2 * self.each)
        self.steps += 1

    def thin(self, each: int) -> None:
        """Keep one of so many steps, a power of two."""
        while self.each < each:
            odd = -(-self.first // self.each) % 2
            self.kept = self.kept[odd::2]
            self.each *= 2

    def since(self, step: int) -> StepTimes:
        """Those of the steps from `step` on."""
        start = -(-step // self.each) - -(-self.first // self.each)
        return StepTimes(step, self.each, self.kept[max(0, start) :], self.steps)

    def extend(self, later: StepTimes) -> None:
        """Go on with what was kept from where these end."""
        each = max(self.each, later.each)
        later = StepTimes(later.first, later.each, later.kept, later.steps)
        for one in (self, later):
            one.thin(each)
        self.kept.extend(later.kept)
        self.steps = later.steps
        if len(self.kept) > MOST:
            self.thin(2 * self.each)

    def plain(self) -> dict[str, Any]:
        """For a file."""
        return {**vars(self), "kept": self.kept.tolist()}

    @classmethod
    def of_plain(cls, plain: dict[str, Any]) -> StepTimes:
        return cls(**{**plain, "kept": array("q", plain["kept"])})

    @classmethod
    def mean(cls, ranks: Sequence[StepTimes]) -> StepTimes:
        """Over ranks, as far as all of them are; those of the same `first`."""
        each = max(one.each for one in ranks)
        copies = [StepTimes(one.first, one.each, one.kept, one.steps) for one in ranks]
        for one in copies:
            one.thin(each)
        shortest = min(len(one.kept) for one in copies)
        means = np.mean([np.array(one.kept[:shortest], dtype=np.float64) for one in copies], axis=0)
        steps = min(one.steps for one in copies)
        return cls(copies[0].first, each, array("q", means.astype(np.int64).tobytes()), steps)
