"""When something happened: on the host's clock, or on a GPU's.

A host clock around asynchronous calls measures only their launch. Where the parameters are on a GPU, marks are events
on its stream, read after the device has passed them; an event costs the host several microseconds, so phases are marked
in the first steps and in every eighth after that, and the time of the others is split in the shares these had.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from ...record.clock import OTHER
from ...record.run import PHASES
from .totals import Totals

if TYPE_CHECKING:
    import torch

Mark = tuple[Any, int]  # when, and the phase that it closes
FIRST_MARKED, MARKED_EVERY = 24, 8
UNSETTLED = 3  # the first steps choose kernels and buffers: they say nothing about the others
READ_AT = 16  # steps that may wait to be read


class HostTimes:
    """Marks are nanoseconds of the host, known at once."""

    stamp = edge = staticmethod(monotonic_ns)

    def __init__(self, totals: Totals):
        self._totals = totals

    def book(self, began: int, marks: Sequence[Mark]) -> None:
        """A step is whole: its beginning, and every mark up to its end."""
        spans = []
        for when, phase in marks:
            spans.append((phase, began, when))
            began = when
        self._totals.book(spans)

    def finish(self) -> None:
        """All has been read."""


class CudaTimes:
    """Marks are events of the device's stream."""

    def __init__(self, totals: Totals, device: torch.device):
        import torch

        self._torch, self._totals, self.device = torch, totals, device
        torch.cuda.synchronize(device)
        self._zero, self._zero_at = self.edge(), monotonic_ns()
        self._waiting: deque[tuple[Any, list[Mark], bool]] = deque()
        self._marked = True
        self._typical = [0] * len(PHASES)

    def edge(self) -> Any:
        """An event in any case: where a step begins or ends."""
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def stamp(self) -> Any:
        """An event, or None in a step whose phases are not marked."""
        return self.edge() if self._marked else None

    def book(self, began: Any, marks: Sequence[Mark]) -> None:
        self._waiting.append((began, list(marks), self._marked))
        step = self._totals.steps
        self._marked = step < FIRST_MARKED or step % MARKED_EVERY == 0
        if len(self._waiting) >= READ_AT:
            while self._waiting and self._waiting[0][1][-1][0].query():
                self._read(*self._waiting.popleft())

    def _read(self, began: Any, marks: list[Mark], marked: bool) -> None:
        at = self._zero_at + round(self._zero.elapsed_time(began) * 1e6)
        if not marked:
            took = round(began.elapsed_time(marks[-1][0]) * 1e6)
            self._totals.book(_split(at, took, self._typical))
            return
        spans = []
        for when, phase in marks:
            end = at + round(began.elapsed_time(when) * 1e6)
            spans.append((phase, at, end))
            if self._totals.step_times.steps >= UNSETTLED:
                self._typical[phase] += end - at
            at, began = end, when
        self._totals.book(spans)

    def finish(self) -> None:
        """Wait for the device and read all that is left."""
        self._torch.cuda.synchronize(self.device)
        while self._waiting:
            self._read(*self._waiting.popleft())


def _split(at: int, took: int, shares: Sequence[int]) -> list[tuple[int, int, int]]:
    """A stretch of time in the shares that the phases of marked steps had, to the last nanosecond."""
    total = sum(shares)
    spans = []
    end = at + took
    for phase, share in enumerate(shares):
        if share and phase != OTHER:
            spans.append((phase, at, at + took * share // total))
            at = spans[-1][2]
    return [*spans, (OTHER, at, end)]
