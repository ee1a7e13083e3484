"""The exceptions users meet, and the guess at what a misspelt name meant.

What code asks about a problem is a type or a declared field, never a word of its message. Fields are plain attributes, so
that an exception arrives in another process with all of them.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from .record.run import Run

# How a rank failed. A consequence is what a rank met because another one was gone.
Kind = Literal["raised", "died", "stalled", "loss", "disk", "time limit", "room", "consequence"]


class ManyhandsError(Exception):
    """Everything this package raises on purpose."""

    run: Run | None = None  # the record of the fit that this ended
    told = False  # another process reports it (under torchrun, rank 0)
    final = False  # this process is about to be ended because of it (by torchrun): no other fit can follow


class BadInput(ManyhandsError, ValueError):
    """What was asked for cannot be done: one line with the values found and the way out (exit code 2)."""


class Refused(BadInput):
    """A strategy cannot train this task; in a comparison this is a row with its reason, not a failure."""


class RankFailed(ManyhandsError, RuntimeError):
    """A rank raised, died, stalled or met a loss that is not finite; the run ended because of it (exit code 1)."""

    def __init__(
        self,
        message: str,
        *,
        rank: int | None = None,
        step: int | None = None,
        phase: str | None = None,
        kind: Kind = "raised",
        traceback: str | None = None,
        detected_seconds: float | None = None,
        host: str | None = None,
    ):
        super().__init__(message)
        self.rank, self.step, self.phase, self.kind, self.traceback = rank, step, phase, kind, traceback
        self.detected_seconds = detected_seconds  # from the rank's last heartbeat to the caller's knowing
        self.host = host  # where it ran, if there are several hosts


class PeerMissing(RankFailed):
    """A rank waits for another process, which is gone or did not come in time; `rank` is that process, where known."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean "ddp"?` where a known name is close, else the list of names there are."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f'; did you mean "{close[0]}"?'
    return f"; there are: {', '.join(names)}" if names else ""
