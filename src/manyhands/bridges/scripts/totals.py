"""What one rank of a script has measured in its whole steps: time in every phase, losses, samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ...record.clock import NUMBER, TRACE_LIMIT, TRACED_STEPS
from ...record.core_watch import CoreTime
from ...record.run import PHASES
from ...record.running_totals import RunningTotals
from ...record.step_times import StepTimes
from .board import LOSS, SAMPLES, STEPS, TOTALS, UNKNOWN

BACKWARD, COMMUNICATION = NUMBER["backward"], NUMBER["communication"]
MOST_LOSSES = 512  # that may lie on the GPU unread, each for itself


@dataclass
class Share:
    """What happened in a part of a step beside the time: its batches, its losses, its updates."""

    samples: int = 0
    unknown: bool = False  # there was a batch whose size cannot be told
    loads: int = 0
    losses: list[Any] = field(default_factory=list)  # what `backward` was called on, detached
    backwards: int = 0
    updates: int = 0
    bytes: int = 0

    def add(self, other: Share) -> None:
        self.samples += other.samples
        self.unknown |= other.unknown
        self.loads += other.loads
        self.losses += other.losses
        self.backwards += other.backwards
        self.updates += other.updates
        self.bytes += other.bytes


class Totals:
    """Running totals of a rank. `phases`, `late` and `watch_core` are what RunningTotals asks of a clock."""

    def __init__(self, row: Any, floats: Any):
        self._row, self._floats = row, floats
        self.phases = [0] * len(PHASES)  # nanoseconds
        self.step_times = StepTimes()
        self.trace: list[tuple[int, int, int, int]] = []  # (step, phase, start, end)
        self.late = self.bytes = self.overlapped = 0
        self.steps = self.samples = self.loads = self.backwards = self.updates = 0
        self.unknown = False
        self.counts: list[int] = []  # samples of every step
        self._losses: list[Any] = []  # of every step: a number, a tensor not yet read, or None
        self._unread = 0
        self._core: CoreTime | None = None
        self._without = 0
        self.marks = RunningTotals(self)

    def watch_core(self, on: bool, stands_for: int = 1) -> int:
        """Nanoseconds in which something else had this thread's core, since the last call."""
        self._core = self._core or CoreTime()
        before, self._without = self._without, self._core.nanoseconds_without()
        return 0 if on else self._without - before

    def note(self, share: Share) -> None:
        """Whose step is whole. Its times may be known later (`book`)."""
        if not self.steps:
            self.marks.begin(0)
        self.steps += 1
        self.samples += share.samples
        self.unknown |= share.unknown
        self.loads += share.loads
        self.backwards += share.backwards
        self.updates += share.updates
        self.bytes += share.bytes
        self.counts.append(share.samples)
        self._note_losses(share.losses)
        self._row[STEPS] = self.steps
        self._row[SAMPLES] = UNKNOWN if self.unknown or not self.loads else self.samples

    def book(self, spans: Sequence[tuple[int, int, int]]) -> None:
        """The times of the next step: phase, start and end of every stretch of it."""
        step = self.step_times.steps
        traced = step in TRACED_STEPS and len(self.trace) < TRACE_LIMIT
        took, phases = 0, self.phases
        for phase, start, end in spans:
            phases[phase] += end - start
            took += end - start
            if traced:
                self.trace.append((step, phase, start, end))
        self.step_times.note(took)
        for number, value in enumerate(phases):
            self._row[TOTALS + number] = value
        self.marks.note(step + 1)

    def expose(self, nanoseconds: int) -> None:
        """Communication that backward stood still for, which was known as backward until now."""
        moved = min(nanoseconds, self.phases[BACKWARD])
        self.phases[BACKWARD] -= moved
        self.phases[COMMUNICATION] += moved

    # ------------------------------------------------------------ losses

    def _note_losses(self, losses: list[Any]) -> None:
        """The sum of what backward was called on; on a GPU it is read later, for reading waits for the device."""
        if not losses:
            self._losses.append(None)
        elif losses[0].device.type == "cpu":
            value = float(sum(float(loss) for loss in losses))
            self._losses.append(value)
            self._floats[LOSS] = value
        else:
            self._losses.append(losses[0] if len(losses) == 1 else sum(losses[1:], losses[0]))
            self._unread += 1
            if self._unread >= MOST_LOSSES:
                self._pack()

    def _pack(self) -> None:
        """Lay the unread losses side by side: each for itself holds half a kilobyte of the device's memory."""
        import torch

        unread = [
            index for index, loss in enumerate(self._losses) if isinstance(loss, torch.Tensor) and loss.dim() == 0
        ]
        with torch.no_grad():
            packed = torch.stack([self._losses[index].float() for index in unread])
        for place, index in enumerate(unread):
            self._losses[index] = (packed, place)
        self._unread = 0

    def losses(self) -> list[tuple[int, float, int, float]]:
        """(step, loss, how many samples and units it is a mean over), where it is known."""
        if self._unread:
            self._pack()
        read: dict[int, list[float]] = {}
        known = []
        for step, loss in enumerate(self._losses):
            if isinstance(loss, tuple):
                packed, place = loss
                if id(packed) not in read:
                    read[id(packed)] = packed.tolist()
                loss = read[id(packed)][place]
            if loss is not None and math.isfinite(loss):
                known.append((step, loss, self.counts[step] or 1, float(self.counts[step] or 1)))
        return known
