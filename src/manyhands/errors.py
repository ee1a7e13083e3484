"""The exceptions users meet, and the guess at what a misspelt name meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class ManyhandsError(Exception):
    """Everything this package raises on purpose."""


class BadInput(ManyhandsError, ValueError):
    """What was asked for cannot be done: one line with the values found and the way out (exit code 2)."""


class Refused(BadInput):
    """A strategy cannot train this task; in a comparison this is a row with its reason, not a failure."""


class RankFailed(ManyhandsError, RuntimeError):
    """A rank raised, died, stalled or met a loss that is not finite; the run ended because of it (exit code 1)."""

    detected_seconds: float | None = None  # from the rank's last heartbeat to the caller's knowing

    def __init__(
        self,
        message: str,
        *,
        rank: int | None = None,
        step: int | None = None,
        phase: str | None = None,
        kind: str = "raised",
        traceback: str | None = None,
    ):
        super().__init__(message)
        self.rank, self.step, self.phase, self.kind, self.traceback = rank, step, phase, kind, traceback

    def __reduce__(self) -> Any:  # travels from a rank to the caller with everything it knows
        return _failure, (str(self), self.rank, self.step, self.phase, self.kind, self.traceback)


def _failure(
    message: str, rank: int | None, step: int | None, phase: str | None, kind: str, traceback: str | None
) -> RankFailed:
    return RankFailed(message, rank=rank, step=step, phase=phase, kind=kind, traceback=traceback)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean "ddp"?` where a known name is close, else the list of names there are."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f'; did you mean "{close[0]}"?'
    return f"; there are: {', '.join(names)}" if names else ""
