"""The clock of a rank with a GPU: marks are events on its stream, read after the device has passed them.

A host clock around asynchronous calls measures only their launch. Events are stamped by the device itself when it
comes to them, so the time between two marks is what the device spent between them, idling for the host included;
marks of the host (`since`: the wait inside a collective, say) are put on the same line of time.

    host     enter  enter   enter      runs ahead of the device
    device      |------|--------|---   each mark closes a phase when the device gets there

A mark costs the host several microseconds, and a small step is launched in a few hundred: phases are marked in the
first steps of a stretch and in every eighth after that, and the other steps' time is split in the shares these had.

Captured steps run several at a time and leave no marks inside. Their time is measured from one group of steps to
the next, and split in the shares of phases that a short eager sample of the same step had.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import monotonic_ns

import torch

from .clock import BEAT_STEP, NUMBER, OTHER, TRACE_LIMIT, TRACED_STEPS, Clock
from .run import PHASES
from .step_times import StepTimes

READ_AT = 512  # marks that may wait to be read
FIRST_MARKED, MARKED_EVERY = 24, 8  # steps of a stretch whose phases are marked
UNSETTLED = 3  # the first steps of a run choose kernels and buffers: they say nothing about the others
_NO_STEP = -1
_UNSPLIT = -1  # a stretch of time that still has to be split into phases


class CudaClock(Clock):
    """Phases of one rank, in the device's own time."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self._marks: deque[tuple[torch.cuda.Event | int, int, int]] = deque()  # when, phase it closes, step it ends
        self._spare: list[torch.cuda.Event] = []
        self._last: torch.cuda.Event | None = None  # the event read last, and its time
        self._last_time = self._time = 0
        self._running = False
        self._first = 0  # the first step of this stretch
        self._marking = True  # phases are marked now
        self._unsplit = 0
        self._typical = [0] * len(PHASES)  # nanoseconds in each phase of marked steps
        self._shares: list[float] | None = None
        self._groups: deque[tuple[torch.cuda.Event, int]] = deque()  # captured: when a group of steps was done
        self._unmarked = 0  # captured: steps since the last mark
        self._ran = False

    # ------------------------------------------------------------ marks

    def _switch(self, number: int) -> int:
        last = self._phase
        if self._marking and self._running and self._shares is None:
            self._mark(self._event(), last)
        self._phase = number
        self.say(number)
        return last

    def since(self, phase: str, when: int) -> None:
        if self._marking and self._running and self._shares is None:
            self._mark(when, self._phase)
        self._phase = NUMBER[phase]

    def _mark(self, when: torch.cuda.Event | int, closes: int, ends_step: int = _NO_STEP) -> None:
        self._marks.append((when, closes, ends_step))
        if len(self._marks) >= READ_AT:
            self._read(wait=False)

    def _event(self) -> torch.cuda.Event:
        event = self._spare.pop() if self._spare else torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    # ------------------------------------------------------------ stretches and steps

    def start(self) -> None:
        torch.cuda.synchronize(self._device)  # what was launched before belongs to no step
        self._into = self.phases
        self._phase = OTHER
        self._running = self._marking = True
        self._first = self.steps
        self._last = self._event()
        self._last_time = self._time = self._since = self._began = monotonic_ns()

    def stop(self) -> None:
        if self._shares is None:
            self._mark(self._event(), self._phase)
        elif self._unmarked or self._ran:
            self._close_group()
        self._phase = OTHER
        self._read(wait=True)
        self._split()
        self._elapsed += self._time - self._began
        self._into = self._scratch
        self._running = False

    def begin_step(self) -> None:
        self._beat[BEAT_STEP] = self.steps + 1  # people count from one
        number = self.steps - self._first
        self._marking = number < FIRST_MARKED or number % MARKED_EVERY == 0
        self._switch(NUMBER["load"])

    def end_step(self) -> None:
        if self._shares is None:
            if self._running:
                self._mark(self._event(), self._phase if self._marking else _UNSPLIT, self.steps)
            self._phase, self._marking = OTHER, True
        else:
            self._unmarked += 1
            if self._ran:
                self._close_group()
        self.steps += 1

    @property
    def seconds(self) -> float:
        """Time in steps so far; while steps are under way the host's word for it."""
        if self._running:
            return (self._elapsed + monotonic_ns() - self._began) / 1e9
        return sum(self.phases) / 1e9

    # ------------------------------------------------------------ captured steps

    def capture(self, shares: Sequence[float]) -> None:
        """From the next step on several steps run at once, and their time is split in these shares of the phases."""
        self._shares = list(shares)

    def ran(self) -> None:
        """The steps handed over since the last call, this one included, are with the device now."""
        self._ran = True

    def _close_group(self) -> None:
        self._groups.append((self._event(), self._unmarked))
        self._unmarked, self._ran = 0, False
        if len(self._groups) >= READ_AT:
            self._read(wait=False)

    @contextmanager
    def sample(self) -> Iterator[list[int]]:
        """Measure some steps that do not count; the list holds their phases afterwards."""
        kept = self.phases, self.step_times, self.steps, self.trace, self._elapsed, self._ended, self.bytes
        overlapped = self.overlapped
        measured = self.phases = [0] * len(PHASES)
        self.step_times, self.trace, self._elapsed, self._ended = StepTimes(), [], 0, 0
        self.start()
        try:
            yield measured
        finally:
            self.stop()
            self.phases, self.step_times, self.steps, self.trace, self._elapsed, self._ended, self.bytes = kept
            self.overlapped = overlapped

    # ------------------------------------------------------------ reading

    def _read(self, wait: bool) -> None:
        """Book every mark the device has passed; `wait` for it to pass them all."""
        if wait:
            torch.cuda.synchronize(self._device)
        while self._marks and (wait or _passed(self._marks[0][0])):
            when, closes, ends = self._marks.popleft()
            began = self._time
            self._advance(when)
            step = self.step_times.steps
            if closes == _UNSPLIT:
                self._unsplit += self._time - began
            else:
                self._into[closes] += self._time - began
                if step >= UNSETTLED:
                    self._typical[closes] += self._time - began
            if closes != _UNSPLIT and step in TRACED_STEPS and len(self.trace) < TRACE_LIMIT:
                self.trace.append((step, closes, began, self._time))
            if ends != _NO_STEP:
                self._step_over(self._elapsed + self._time - self._began)
        while self._groups and (wait or self._groups[0][0].query()):
            self._book_group(*self._groups.popleft())

    def _split(self) -> None:
        """The time of steps without marks, in the shares of those with marks."""
        if any(self._typical):
            self._share_out(self._unsplit, self._typical)
            self._unsplit = 0

    def _share_out(self, time: int, weights: Sequence[float]) -> None:
        """Book a time to the phases in proportion to the weights, to the last nanosecond."""
        parts = [round(time * weight / (sum(weights) or 1)) for weight in weights]
        parts[OTHER] += time - sum(parts)
        for number, part in enumerate(parts):
            self._into[number] += part

    def _book_group(self, event: torch.cuda.Event, steps: int) -> None:
        """The time since the last group, over its steps and over the phases in their shares."""
        assert self._shares is not None
        began = self._time
        self._advance(event)
        took = self._time - began
        self._share_out(took, self._shares)
        offset = self._elapsed + began - self._began
        for number in range(steps):
            self._step_over(offset + took * (number + 1) // steps)

    def _advance(self, when: torch.cuda.Event | int) -> None:
        """Move on to a mark; times never run backwards, whoever gave them."""
        if isinstance(when, int):
            self._time = max(self._time, when)
            return
        assert self._last is not None
        # from event to event: the device counts in 32-bit milliseconds, too coarse over a long stretch
        self._last_time += round(self._last.elapsed_time(when) * 1e6)
        self._spare.append(self._last)
        self._last = when
        self._time = max(self._time, self._last_time)


def _passed(when: torch.cuda.Event | int) -> bool:
    return isinstance(when, int) or bool(when.query())
