"""What the caller knows of a fit that ended without an outcome: its ranks are gone, but rank 0 had told how far it was."""

from __future__ import annotations

from typing import Any

from ..record.run import PHASES, Run


class KnownSoFar:
    """Hears rank 0 and fills the record of a fit that has no outcome."""

    def __init__(self) -> None:
        self._progress: dict[str, Any] = {}

    def hear(self, kind: str, content: Any) -> None:
        if kind == "progress":
            self._progress = content

    def fill(self, run: Run) -> None:
        """Steps, time, phases and speed, as rank 0 last told; what only all ranks together know stays unknown."""
        steps = self._progress.get("step")
        if not steps:
            return
        nanoseconds, rate = self._progress["phases"], self._progress["samples_per_second"]
        run.steps, run.seconds = steps, sum(nanoseconds) / 1e9
        run.phases_ms = dict(zip(PHASES, (value / steps / 1e6 for value in nanoseconds), strict=True))
        run.samples_per_second = rate
        run.samples = round(rate * run.seconds) if rate else None
        run.notes.append(f"steps, time and phases are those of rank 0 up to step {steps}, the last of which it told")
