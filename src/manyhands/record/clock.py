"""The clock: where the time of a step goes.

A rank is always in exactly one phase; entering the next one closes the last. So the phases of a step sum to
the step by construction, and what nobody claimed is `other`. A rank with a GPU has a clock of events instead
(`cuda_clock.py`), because a host clock around asynchronous calls measures only their launch.

    clock.start()                            a stretch of steps begins (after a barrier)
      clock.enter("load"); ...               one mark: about a third of a microsecond
      clock.enter("forward"); ...
      with clock.during("communication"):    a phase inside a phase; the outer one goes on afterwards
      clock.end_step()
    clock.stop()                             evaluation and checkpoints are not steps

Between two marks a rank may have slept, or been ready to run while something else ran on its core. `watch_core` looks at
both (`core_watch.py`); a rank that looks slow may just have had no core.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableSequence
from contextlib import contextmanager
from time import monotonic_ns
from typing import Any

from .core_watch import CoreWatch, switches
from .run import PHASES
from .step_times import StepTimes

NUMBER = {name: number for number, name in enumerate(PHASES)}
OTHER = NUMBER["other"]
BEAT_STEP, BEAT_PHASE, BEAT_SINCE, BEAT_CELLS = range(4)  # what a clock writes at the beginning of a heartbeat row
TRACED_STEPS = range(3, 9)  # the steps whose phases are kept one by one, for the timeline
TRACE_LIMIT = 4000


class Clock:
    """Phases, steps and bytes of one rank. Times are integers of nanoseconds."""

    def __init__(self) -> None:
        self.phases = [0] * len(PHASES)  # nanoseconds in each phase while running
        self.step_times = StepTimes()
        self.bytes = 0
        self.overlapped = 0  # communication hidden behind backward
        self.steps = 0
        self.trace: list[tuple[int, int, int, int]] = []  # (step, phase, start, end)
        self.late: int = 0  # how long others had waited for this rank at synchronisation points
        self._beat: MutableSequence[int] | memoryview = [0] * BEAT_CELLS
        self._scratch = [0] * len(PHASES)
        self._into = self._scratch
        self._phase = OTHER
        self._since = monotonic_ns()
        self._began = 0
        self._elapsed = 0  # of the stretches before this one
        self._ended = 0  # when the last step had ended, in the time of all stretches
        self._tracing = False
        self._watch: CoreWatch | None = None
        self._watching = False
        self._switches = [0, 0]  # context switches in steps: voluntary, involuntary
        self._switches_before = (0, 0)
        self._resumed = 0  # steps of an earlier part of the run

    def beat_on(self, row: MutableSequence[int] | memoryview) -> None:
        """Write step and phase here at every mark, for those who watch."""
        self._beat = row

    def enter(self, phase: str) -> int:
        """Close the current phase and begin another; returns the number of the one that was closed."""
        return self._switch(NUMBER[phase])

    def _switch(self, number: int) -> int:
        now = monotonic_ns()
        last = self._phase
        self._into[last] += now - self._since
        if self._tracing:
            self.trace.append((self.steps, last, self._since, now))
        if self._watching:
            self._watch.look(last, now - self._since, 1.0)  # type: ignore[union-attr]
        self._phase = number
        self._since = now
        beat = self._beat
        beat[BEAT_PHASE] = number
        beat[BEAT_SINCE] = now
        return last

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        before = self._switch(NUMBER[phase])
        try:
            yield
        finally:
            self._switch(before)

    def since(self, phase: str, when: int) -> None:
        """Another phase began at `when`, which is known only now (the wait inside a collective, say)."""
        when = max(when, self._since)
        last = self._phase
        self._into[last] += when - self._since
        if self._tracing:
            self.trace.append((self.steps, last, self._since, when))
        if self._watching:
            share = (when - self._since) / max(1, monotonic_ns() - self._since)
            self._watch.look(last, when - self._since, share)  # type: ignore[union-attr]
        self._phase = NUMBER[phase]
        self._since = when

    def watch_core(self, on: bool, stands_for: int = 1) -> int:
        """Watch the cores from here on, or no more; returns the nanoseconds without one since the watch began.

        What was watched stands for so many shares.
        """
        self._watch = self._watch or CoreWatch()
        found = self._watch.end(stands_for)
        self._watch.begin()
        self._watching = on
        return found

    def count(self, payload: int) -> None:
        """Bytes this rank handed over."""
        if self._into is self.phases:
            self.bytes += payload

    def hide(self, began: int, ended: int) -> None:
        """Communication that ran behind backward and cost the step nothing."""
        if self._into is self.phases and ended > began:
            self.overlapped += ended - began
            if self._tracing:
                self.trace.append((self.steps, NUMBER["communication"], began, ended))

    def resume(self, phases: list[int], times: StepTimes, counted: int, overlapped: int, late: int) -> None:
        """Go on from what an earlier part of the run had measured."""
        self.phases[:] = phases
        self.step_times = times.since(0)
        self.steps = self._resumed = times.steps
        self._elapsed = self._ended = sum(phases)
        self.bytes, self.overlapped, self.late = counted, overlapped, late

    def start(self) -> None:
        if self._watch is not None:
            self._watch.begin()
        self._switches_before = switches()
        self._into = self.phases
        self._phase = OTHER
        self._since = self._began = monotonic_ns()

    def stop(self) -> None:
        self._switch(OTHER)
        self._elapsed += self._since - self._began
        self._into = self._scratch
        self._tracing = False
        for number, count in enumerate(switches()):
            self._switches[number] += count - self._switches_before[number]

    def begin_step(self) -> None:
        self._beat[BEAT_STEP] = self.steps + 1  # people count from one
        self._tracing = self.steps in TRACED_STEPS and len(self.trace) < TRACE_LIMIT
        self._switch(NUMBER["load"])

    def end_step(self) -> None:
        self._switch(OTHER)
        self._tracing = False
        self.steps += 1
        self._step_over(self._elapsed + self._since - self._began)

    def _step_over(self, when: int) -> None:
        """A step has ended, in the time of all stretches."""
        self.step_times.note(when - self._ended)
        self._ended = when

    def ran(self) -> None:
        """Steps handed over earlier have run with this one; only a clock of captured steps wants to know."""

    def say(self, number: int) -> None:
        """Tell the watchers of a state that is no phase of a step (start-up, evaluation, end)."""
        self._beat[BEAT_PHASE] = number
        self._beat[BEAT_SINCE] = monotonic_ns()

    @property
    def phase(self) -> str:
        return PHASES[self._phase]

    @property
    def seconds(self) -> float:
        """Time in steps so far."""
        return sum(self.phases) / 1e9

    def figures(self) -> dict[str, Any]:
        """What the record needs, as plain numbers."""
        return {
            "phases": list(self.phases),
            "step_times": self.step_times,
            "bytes": self.bytes,
            "overlapped": self.overlapped,
            "trace": list(self.trace),
            "late": self.late,
            "cpu_per_wall": self._watch.cpu_per_wall() if self._watch else None,
            "switches": [count / max(1, self.steps - self._resumed) for count in self._switches],
        }
