"""What a script does, cut into steps: which stretch of time is which phase of which step, and which belongs to none.

A script says nothing of steps. What can be seen is what it calls, one call after another:

    load  forward  backward  update | load  forward  backward  load  forward  backward  update | load  forward  load ...
    '------------ a step -----------' '---------- a step: gradients accumulated ---------------'   '---- evaluation

- A step ends with the update (an optimizer's step) after which the next batch is loaded, or the same optimizer steps
  again. So two optimizers that take turns (a GAN) make one step, and a loop without a DataLoader has steps too.
- Batches that went through the model without a gradient, or in its evaluation mode, and were followed by another one
  instead of a backward, were evaluated: that time is in no step.
- What comes before the batch of the first step is start-up.

Which of these a stretch was is known only afterwards, so the marks of a step wait until it is whole.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns
from typing import Any

from ...record.clock import BEAT_PHASE, BEAT_SINCE, BEAT_STEP, NUMBER, OTHER
from .board import EVALUATION, FIRST
from .times import CudaTimes, HostTimes, Mark
from .totals import Share, Totals

LOAD, TRANSFER, FORWARD, BACKWARD = (NUMBER[name] for name in ("load", "transfer", "forward", "backward"))
COMMUNICATION, UPDATE = NUMBER["communication"], NUMBER["update"]


class Steps:
    """Hears what the script calls, in its own order, and finds the steps."""

    def __init__(self, row: Any, floats: Any):
        self._row = row
        self.totals = Totals(row, floats)
        self.times: HostTimes | CudaTimes = HostTimes(self.totals)
        self.phase = OTHER
        self.seen: set[int] = set()  # phases that the script was ever in
        self.evaluation = 0  # nanoseconds
        self.on_step: Callable[[], None] | None = None  # called after every whole step
        self._updating = 0  # optimizers inside one another
        self.inside = False  # the model
        self._trained: set[int] = set()  # modules that were called for a gradient
        self._began: Any = None  # when the step at hand began; None: no step is at hand
        self._began_at = self._cut_at = 0  # the same, and the last update's end, on the host's clock
        self._left_at = 0  # when an evaluation was last known to go on
        self._marks: list[Mark] = []
        self._cut = 0  # marks up to the last update; 0: there was none yet
        self._closed, self._open = Share(), Share()  # up to the last update, and after it
        self._stepped: set[int] = set()  # optimizers that have
        self._idle = False  # since the last update the model was called without a gradient
        self._called = False  # since the last update the model was called
        self._alone = False  # nothing happened in the step at hand but one load

    def switch(self, phase: int) -> int:
        """Close the current phase and begin another; returns the one that was closed."""
        now, last = self.times.stamp(), self.phase
        if now is not None:
            self._marks.append((now, last))
        self.phase = phase
        self._row[BEAT_PHASE] = phase
        self._row[BEAT_SINCE] = monotonic_ns()
        return last

    # ------------------------------------------------------------ what the script does

    def load_begins(self) -> None:
        if self._cut:
            self.switch(LOAD)  # first: what is booked for the step before takes time as well
            self._commit()
            self._alone = False
            self.seen.add(LOAD)
            return
        if (self._idle or (self._called and not self.totals.steps)) and not self._open.backwards:
            self._discard()  # an evaluation, or a call before the training that tried the model
        self._alone = self._began is None
        if self._alone:
            self._begin()
        self.seen.add(LOAD)
        self.switch(LOAD)

    def load_ends(self, samples: int | None, exhausted: bool = False) -> None:
        """`samples`: None where they cannot be told, 0 where there was no batch."""
        self.switch(self.resting)
        if exhausted:
            if self._alone:  # the end of an evaluation's data
                self._discard()
            return
        self._open.loads += samples != 0
        self._open.samples += samples or 0
        self._open.unknown |= samples is None

    def forward_begins(self, gradient: bool) -> None:
        if self._began is None and gradient:
            self._begin()
        self.inside, self._called, self._alone = True, True, False
        self.switch(FORWARD)

    def forward_ends(self, module: Any, gradient: bool) -> None:
        """With a gradient, all up to the backward pass is forward: the loss is part of it."""
        self.inside = False
        if gradient:
            self.seen.add(FORWARD)
            self._idle |= not module.training
            if module.training:
                self._trained.add(id(module))
            return
        self.switch(self.resting)
        self._idle = True
        if not module.training and not self._open.loads and id(module) in self._trained:  # evaluated without a loader
            if self._cut:
                self._commit()
            self._discard()

    def backward_begins(self, loss: Any) -> int:
        if self._began is None:
            self._begin()
        self.seen.add(BACKWARD)
        self._open.backwards += 1
        if loss is not None:
            self._open.losses.append(loss)
        return self.switch(BACKWARD)

    def backward_ends(self) -> None:
        self.switch(FORWARD if self.inside else self.resting)

    def update_begins(self, optimizer: Any) -> None:
        self._updating += 1
        if self._updating > 1:
            return
        if self._cut and id(optimizer) in self._stepped:
            self._commit()
        if self._began is None:
            self._begin()
        self.switch(UPDATE)

    def update_ends(self, optimizer: Any) -> None:
        self._updating -= 1
        if self._updating:
            return
        first = not self.totals.steps and not self._cut
        device = _gpu(optimizer) if first else None
        times = CudaTimes(self.totals, device) if device is not None else self.times  # (waits for the device)
        self.seen.add(UPDATE)
        self._open.updates += 1
        self._closed.add(self._open)
        self._open, self._idle, self._called = Share(), False, False
        self._stepped.add(id(optimizer))
        self._row[BEAT_STEP] = self.totals.steps + 2
        self._marks.append((self.times.edge(), self.phase))  # last: what was booked above took time as well
        self.phase, self._cut, self._cut_at = OTHER, len(self._marks), monotonic_ns()
        self._row[BEAT_PHASE], self._row[BEAT_SINCE] = OTHER, self._cut_at
        if times is not self.times:
            self._commit()
            self.times, self._began = times, times.edge()

    def communicated(self, payload: int) -> None:
        """Bytes were handed over."""
        self._open.bytes += payload

    @property
    def resting(self) -> int:
        """The phase outside of all others: inside an optimizer (its closure calls the model) that is the update."""
        return UPDATE if self._updating else OTHER

    # ------------------------------------------------------------ what belongs to which step

    def _begin(self) -> None:
        self._marks.clear()
        self._began, self._began_at = self.times.edge(), monotonic_ns()
        self._row[BEAT_STEP] = self.totals.steps + 1

    def _commit(self) -> None:
        """The step up to the last update is whole; what came after it is the beginning of the next."""
        if not self.totals.steps:
            self._row[FIRST], self.evaluation = self._began_at, 0
        whole, self._marks = self._marks[: self._cut], self._marks[self._cut :]
        began, self._began, self._began_at = self._began, whole[-1][0], self._cut_at
        self._cut = 0
        self.totals.note(self._closed)
        self._closed = Share()
        self._stepped.clear()
        self.times.book(began, whole)
        self._row[BEAT_STEP] = self.totals.steps + 1
        if self.on_step is not None:
            self.on_step()

    def _discard(self) -> None:
        """What came after the last step is in none."""
        now = monotonic_ns()
        since = self._left_at if self._began is None else self._began_at
        if since:
            self.evaluation += now - since
        self._left_at = now
        self._row[EVALUATION] = self.evaluation
        self._began, self._open, self._idle, self._called = None, Share(), False, False
        self._marks.clear()

    def finish(self) -> None:
        """The script has ended."""
        if self._cut:
            self._commit()
        if self._idle:
            self._discard()
        self.times.finish()


def _gpu(optimizer: Any) -> Any:
    """The GPU that the parameters are on, if they are."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            return parameter.device if parameter.device.type == "cuda" else None
    return None
