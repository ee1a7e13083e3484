"""How far an experiment is, on standard error: the part that runs, its epoch, about how long the rest takes."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence


class LabProgress:
    """In a terminal the line of the running part changes with every epoch; elsewhere there is a line per part."""

    def __init__(self, shown: bool):
        self.shown = shown
        self.live = shown and sys.stderr is not None and sys.stderr.isatty()
        self._costs: list[float] = []
        self._total = self._number = 0
        self._spent = self._done = 0.0
        self._began = time.monotonic()
        self._label = ""

    def begin(self, costs: Sequence[float], total: int) -> None:
        """`costs` of the fits that are to be run, `total` with those that are finished."""
        self._costs, self._total, self._number = list(costs), total, total - len(costs)
        if self._number:
            self._say(f"{self._number} of {total} fits are already there and are not run again")

    def part(self, label: str) -> None:
        self._number += 1
        self._label, self._began = label, time.monotonic()
        self._show(f"{self._head()}{self._left(0.0)}", always=True)

    def epoch(self, number: int, of: int) -> None:
        if self.live:
            self._show(f"{self._head()}: epoch {number} of {of}{self._left(number / of if of else 0.0)}")

    def part_ended(self, cost: float, problem: str | None) -> None:
        seconds = time.monotonic() - self._began
        self._costs = self._costs[1:]
        if problem is None:  # a refusal takes no time, and says nothing of the others
            self._spent, self._done = self._spent + seconds, self._done + cost
        self.end()
        self._say(f"{f'{self._head()}:' if self.live else ' '} {problem or f'{seconds:.1f} s'}")

    def skipped(self) -> None:
        """A fit that is not run after all, since its part had a problem with an earlier seed."""
        self._number, self._costs = self._number + 1, self._costs[1:]

    def end(self) -> None:
        if self.live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def _head(self) -> str:
        return f"[{self._number}/{self._total}] {self._label}"

    def _left(self, share: float) -> str:
        """From what the fits took so far, by their costs; at first from how far the running one is."""
        running = time.monotonic() - self._began
        done = self._done + share * (self._costs[0] if self._costs else 0.0)
        if not done:
            return ""
        seconds = (self._spent + running * (share > 0)) / done * max(0.0, sum(self._costs) - (done - self._done))
        return f" (about {seconds:.0f} s left)" if seconds < 90 else f" (about {seconds / 60:.0f} min left)"

    def _show(self, text: str, always: bool = False) -> None:
        if self.live:
            width = shutil.get_terminal_size().columns - 1  # what wraps cannot be taken back
            print(f"\r\x1b[K{text[:width]}", end="", file=sys.stderr, flush=True)
        elif always:
            self._say(text)

    def _say(self, text: str) -> None:
        if self.shown:
            print(text, file=sys.stderr, flush=True)
