"""Progress on standard error: a bar in a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

from ..record.run import Run
from ..record.untrusted import plain
from ..strategies.contract import Strategy
from ..strategies.job import Job

PLAIN_SECONDS = 10.0  # between plain lines


class Progress:
    """Hears what rank 0 tells and shows it. Does nothing when not wanted."""

    def __init__(self, strategy: Strategy, job: Job, shown: bool):
        self.title = f"{job.task.name or 'task'} · {strategy} · {strategy.ranks} rank{'s' * (strategy.ranks != 1)}"
        self.total = job.total_steps
        self.shown = shown
        self.live = shown and sys.stderr is not None and sys.stderr.isatty()
        self._bar: Any = None
        self._said = time.monotonic()

    def __enter__(self) -> Progress:
        if self.live:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar
            from rich.table import Column

            title = Column(ratio=1, no_wrap=True, overflow="ellipsis")  # gives way to the figures
            self._bar = Bar(
                TextColumn("{task.description}", table_column=title),
                BarColumn(bar_width=10),
                MofNCompleteColumn(),
                TextColumn("{task.fields[figures]}"),
                TimeRemainingColumn(compact=True),
                console=Console(stderr=True),
                transient=True,
                expand=True,
            )
            self._bar.start()
            self._row = self._bar.add_task(self.title, total=self.total, figures="starting")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def hear(self, kind: str, content: Any) -> None:
        if not self.shown:
            return
        if kind == "progress":
            self._step(content)
        elif kind == "epoch":
            self._epoch(content)
        elif kind == "note":
            self._line(str(content))

    def _step(self, content: dict[str, Any]) -> None:
        figures = _figures(content)
        if self._bar is not None:
            self._bar.update(self._row, completed=content["step"], figures=figures)
        elif time.monotonic() - self._said > PLAIN_SECONDS:
            self._said = time.monotonic()
            self._line(f"{self.title}: step {content['step']} of {content['steps']}, {figures}")

    def _epoch(self, entry: dict[str, Any]) -> None:
        accuracy = entry.get("test_accuracy")
        loss = f"loss {entry['loss']:.4f}, " if entry["loss"] is not None else ""
        tested = f", test accuracy {100 * accuracy:.2f} %" if accuracy is not None else ""
        self._line(f"{self.title}: epoch {entry['epoch']}, {loss}{entry['seconds']:.1f} s{tested}")

    def _line(self, text: str) -> None:
        text = plain(text)  # notes may name what stands in a file
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False)
        else:
            print(text, file=sys.stderr, flush=True)


class Stages:
    """How far a whole comparison is: what runs now, what was refused or failed, about how long the rest takes."""

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


def _figures(content: dict[str, Any]) -> str:
    parts = []
    if content.get("loss") is not None:
        parts.append(f"loss {content['loss']:.4f}")
    if content.get("samples_per_second"):
        parts.append(f"{content['samples_per_second']:,.0f} samples/s")
    return ", ".join(parts) or "starting"
