"""Progress: a bar in a terminal or a notebook, a plain line on standard error now and then elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any

from ..record.untrusted import plain
from ..strategies.contract import Strategy
from ..strategies.job import Job
from .notebook import Cell, in_notebook

PLAIN_SECONDS = 10.0  # between plain lines


class Progress:
    """Hears what rank 0 tells and shows it. Does nothing when not wanted. In a comparison all fits share one notebook cell."""

    def __init__(self, strategy: Strategy, job: Job, shown: bool | Cell):
        self.title = f"{job.task.name or 'task'} · {strategy} · {strategy.ranks} rank{'s' * (strategy.ranks != 1)}"
        self.total = job.total_steps
        self.shown = bool(shown)
        self._cell = shown if isinstance(shown, Cell) else Cell() if shown and in_notebook() else None
        self.live = self.shown and self._cell is None and sys.stderr is not None and sys.stderr.isatty()
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

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self._cell is not None:
            self._cell.end()

    def hear(self, kind: str, content: Any) -> None:
        if not self.shown:
            return
        if kind == "progress":
            self._step(content)
        elif kind == "epoch":
            self._epoch(content)
        elif kind == "note":
            self._line(str(content))

    def warn(self, text: str) -> None:
        """A line that is shown even where progress is not wanted."""
        self._line(text)

    def _step(self, content: dict[str, Any]) -> None:
        figures = _figures(content)
        if self._bar is not None:
            self._bar.update(self._row, completed=content["step"], figures=figures)
        elif self._cell is not None:
            self._cell.bar(self.title, content["step"], content["steps"], figures)
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
        elif self._cell is not None:
            self._cell.line(text)
        else:
            print(text, file=sys.stderr, flush=True)


def _figures(content: dict[str, Any]) -> str:
    parts = []
    if content.get("loss") is not None:
        parts.append(f"loss {content['loss']:.4f}")
    if content.get("samples_per_second"):
        parts.append(f"{content['samples_per_second']:,.0f} samples/s")
    return ", ".join(parts) or "starting"
