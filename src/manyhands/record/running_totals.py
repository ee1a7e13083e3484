"""Running totals of a process, kept now and then, so that the parts of a fit can be judged one by one.

A mark holds running totals, one column each: nanoseconds of every phase, how late it came to meetings, shares made,
and how long it could have worked while something else had its core. At most `MOST` are kept, evenly spread however
long the fit: when there are more, every second one is dropped and the next come half as often. The time without a core
is measured in the share before each mark and stands for all shares since the mark before.
"""

from __future__ import annotations

from typing import Protocol

from .run import PHASES

MOST = 64
LATE, MADE, STOLEN = range(len(PHASES), len(PHASES) + 3)  # columns behind those of the phases


class Measured(Protocol):
    """What running totals ask of a clock."""

    phases: list[int]
    late: int

    def watch_core(self, on: bool, stands_for: int = 1) -> int: ...


class RunningTotals:
    """The marks of one process."""

    def __init__(self, clock: Measured):
        self.kept: list[list[int]] = []
        self._clock = clock
        self._shares = 0
        self._every = 1
        self._stolen = 0

    def begin(self, made: int) -> None:
        """Before the first share."""
        self._keep(made)
        self._clock.watch_core(True)

    def note(self, made: int) -> None:
        """After every share."""
        self._shares += 1
        if self._shares % self._every == 0:
            self._stolen += self._clock.watch_core(False, self._every) * self._every
            self._keep(made)
            if len(self.kept) > MOST:
                self.kept = self.kept[::2]
                self._every *= 2
        if (self._shares + 1) % self._every == 0:
            self._clock.watch_core(True)

    def end(self, made: int) -> None:
        """After the last."""
        self._keep(made)

    def _keep(self, made: int) -> None:
        self.kept.append([*self._clock.phases, self._clock.late, made, self._stolen])
