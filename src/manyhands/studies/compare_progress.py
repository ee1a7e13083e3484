"""How far a whole comparison is, on standard error."""

from __future__ import annotations

import sys
import time

from ..record.run import Run


class CompareProgress:
    """What runs now, what was refused or failed, about how long the rest takes."""

    def __init__(self, fits: int, rounds: int, round_seconds: float, shown: bool):
        self.fits, self.rounds, self.round_seconds, self.shown = fits, rounds, round_seconds, shown
        self.live = shown and sys.stderr is not None and sys.stderr.isatty()
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
        """In a terminal one line that changes, elsewhere a line a round."""
        text = f"round {number} of {self.rounds}"
        if self.live:
            print(f"\r\x1b[K{text}, slice {place} of {slices}: {label}", end="", file=sys.stderr, flush=True)
        elif place == 1:
            self.say(f"{text}: {slices} slices of about {self.round_seconds:g} s")

    def end(self) -> None:
        if self.live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        if self.shown:
            print(text, file=sys.stderr, flush=True)

    def _left(self) -> str:
        """A guess from what the fits took so far; none before the first has ended."""
        if not self._done:
            return ""
        startup = sum(self._startups) / len(self._startups) if self._startups else 0.0
        slices = self.rounds * self.fits * (self.round_seconds + startup)
        seconds = (time.monotonic() - self._began) / self._done * (self.fits - self._done) + slices
        return f" (about {seconds:.0f} s left)" if seconds < 90 else f" (about {seconds / 60:.0f} min left)"
