"""How far a whole comparison is, on standard error."""

from __future__ import annotations

import sys
import time

from ..record.run import Run
from ..training.notebook import Cell, in_notebook


class CompareProgress:
    """What runs now, what was refused or failed, about how long the rest takes."""

    def __init__(self, fits: int, rounds: int, round_seconds: float, shown: bool):
        self.fits, self.rounds, self.round_seconds, self.shown = fits, rounds, round_seconds, shown
        self.cell = Cell() if shown and in_notebook() else None
        self.live = shown and self.cell is None and sys.stderr is not None and sys.stderr.isatty()
        self._done = 0
        self._startups: list[float] = []
        self._began = time.monotonic()

    def begin_fit(self, label: str) -> None:
        self.say(f"[{self._done + 1}/{self.fits}] {label}: the whole fit{self._left()}")

    def end_fit(self, run: Run) -> None:
        self._done += 1
        if run.startup_seconds is not None:
            self._startups.append(run.startup_seconds)
        if run.status != "done":
            self.say(f"  {run.status}: {str(run.reason).strip().splitlines()[0]}")

    def slice(self, number: int, place: int, slices: int, label: str) -> None:
        """In a terminal one line that changes, in a notebook the bar, elsewhere a line per round."""
        text = f"round {number} of {self.rounds}"
        if self.cell is not None:
            done = (number - 1) * slices + place
            self.cell.bar(text, done, self.rounds * slices, f"{label}, about {self.round_seconds:g} s")
        elif self.live:
            print(f"\r\x1b[K{text}, slice {place} of {slices}: {label}", end="", file=sys.stderr, flush=True)
        elif place == 1:
            self.say(f"{text}: {slices} slices of about {self.round_seconds:g} s")

    def end(self) -> None:
        if self.live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        if self.cell is not None:
            self.cell.end()

    def say(self, text: str) -> None:
        if self.cell is not None:
            self.cell.line(text)
        elif self.shown:
            print(text, file=sys.stderr, flush=True)

    def _left(self) -> str:
        """A guess from what the fits took so far; none before the first has ended."""
        if not self._done:
            return ""
        startup = sum(self._startups) / len(self._startups) if self._startups else 0.0
        slices = self.rounds * self.fits * (self.round_seconds + startup)
        seconds = (time.monotonic() - self._began) / self._done * (self.fits - self._done) + slices
        return f" (about {seconds:.0f} s left)" if seconds < 90 else f" (about {seconds / 60:.0f} min left)"
