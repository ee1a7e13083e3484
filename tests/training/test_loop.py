"""The loop alone: in which order feed, worker, clock and observers are called, and what observers may ask for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from manyhands.data.batches import Batch
from manyhands.data.order import Order, PlannedStep
from manyhands.record.clock import Clock
from manyhands.strategies.contract import Loss
from manyhands.training.loop import Loop
from manyhands.training.observers import Ask, Observer

ORDER = Order(samples=6, batch_size=2, seed=0)  # three steps an epoch


class Diary:
    """A feed, a worker and a meeting that write down when they are called."""

    def __init__(self, extra: int = 0, late: int = 0):
        self.lines: list[str] = []
        self._extra, self._late = extra, late

    def begin(self, steps: Sequence[PlannedStep]) -> None:
        self.lines.append(f"begin {steps[0].before}")

    def next(self, step: PlannedStep) -> Batch:
        return Batch(None, None, 2, step)

    def extra(self, last: PlannedStep) -> Iterator[Batch]:
        return (Batch(None, None, 1, last, own=False) for _ in range(self._extra))

    def step(self, batch: Batch) -> Loss:
        self.lines.append(f"step {batch.step.before}" if batch.own else "extra")
        return Loss(0.5, batch.count)

    def settle(self) -> list[Loss]:
        return [Loss(0.1, 1)] * self._late

    def meet(self) -> None:
        self.lines.append("meet")


class Watching(Observer):
    """Writes every moment down, and asks for what it is told to."""

    def __init__(self, diary: Diary, **asks: tuple[int, Ask]):
        self.lines, self.asks = diary.lines, asks

    def begin_epoch(self) -> None:
        self.lines.append("epoch")

    def before_work(self, step: PlannedStep) -> None:
        self.lines.append("before")

    def after_work(self, step: PlannedStep, batch: Batch | None, loss: Any) -> None:
        self.lines.append("after" if batch is not None else f"settled {len(loss)}")

    def after_step(self, step: PlannedStep) -> Ask | None:
        at, ask = self.asks.get("step", (-1, Ask()))
        return ask if step.before == at else None

    def paused(self, step: PlannedStep) -> None:
        self.lines.append(f"paused {step.before}")

    def after_epoch(self, last: PlannedStep) -> Ask | None:
        self.lines.append(f"end {last.epoch}")
        at, ask = self.asks.get("epoch", (-1, Ask()))
        return ask if last.epoch == at else None

    def finish(self) -> None:
        self.lines.append("finish")


def looped(diary: Diary, *observers: Observer, done: int = 0, total: int = 6) -> tuple[Loop, Clock]:
    clock = Clock()
    loop = Loop(diary, diary, clock, observers, diary.meet)  # type: ignore[arg-type]
    loop.run(ORDER.epochs(done, total))
    return loop, clock


STEP = ["before", "step {}", "after"]


def steps(*numbers: int) -> list[str]:
    return [line.format(number) for number in numbers for line in STEP]


def test_the_moments_of_an_epoch() -> None:
    diary = Diary(extra=1, late=2)
    loop, clock = looped(diary, Watching(diary), total=3)
    opening, closing = ["begin 0", "meet", "epoch"], ["extra", "after", "settled 2", "meet", "end 0", "finish"]
    assert diary.lines == [*opening, *steps(0, 1, 2), *closing]
    assert (loop.stopped, clock.steps) == (None, 3)


def test_a_pause_is_taken_together_but_not_after_the_last_step_of_an_epoch() -> None:
    diary = Diary()
    looped(diary, Watching(diary, step=(1, Ask(pause=True))), total=3)
    assert diary.lines[3:-3] == [*steps(0, 1), "meet", "paused 1", "meet", *steps(2)]
    diary = Diary()
    looped(diary, Watching(diary, step=(2, Ask(pause=True))), total=3)
    assert "paused 2" not in diary.lines


@pytest.mark.parametrize(("asks", "made"), [({"step": (1, Ask(stop="enough"))}, 2), ({"epoch": (0, Ask(stop="enough"))}, 3)])  # fmt: skip
def test_who_asks_for_the_end_gets_it_with_the_epoch_closed(asks: dict[str, Any], made: int) -> None:
    diary = Diary()
    loop, clock = looped(diary, Watching(diary, **asks))
    assert (loop.stopped, clock.steps) == ("enough", made)
    assert diary.lines[-2:] == ["end 0", "finish"]


def test_a_resumed_fit_begins_in_the_middle_and_one_that_was_done_only_finishes() -> None:
    diary = Diary()
    looped(diary, Watching(diary), done=2, total=4)
    assert [line for line in diary.lines if line.startswith(("begin", "step"))] == ["begin 2", "step 2", "begin 3", "step 3"]  # fmt: skip
    diary = Diary()
    looped(diary, Watching(diary), done=6, total=6)
    assert diary.lines == ["finish"]


def test_a_step_calls_no_verb_that_an_observer_leaves_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class OnlyTheEnd(Observer):
        finished = 0

        def finish(self) -> None:
            self.finished += 1

    called: list[str] = []
    only = OnlyTheEnd()
    for verb in ("before_work", "after_work", "after_step"):
        monkeypatch.setattr(Observer, verb, lambda *_, verb=verb: called.append(verb))
    looped(Diary(), only)
    assert (called, only.finished) == ([], 1)
