"""The clock of events, with events that a test can set: the device is a number that moves when it is told to."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest
import torch

from manyhands.record import cuda_clock
from manyhands.record.clock import NUMBER
from manyhands.record.cuda_clock import CudaClock

DEVICE = torch.device("cuda", 0)
MS = 1_000_000


class Device:
    """Time on the device, in nanoseconds; the host's clock shows the same."""

    now = 0

    def work(self, milliseconds: float) -> None:
        Device.now += round(milliseconds * MS)


class Event:
    def __init__(self, enable_timing: bool = False):
        self.time = 0

    def record(self, *_: Any) -> None:
        self.time = Device.now

    def query(self) -> bool:
        return True

    def elapsed_time(self, later: Event) -> float:
        return (later.time - self.time) / MS


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    Device.now = 0
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(cuda_clock, "monotonic_ns", lambda: Device.now)
    return Device()


def make_steps(clock: CudaClock, device: Device, count: int, forward: float = 3.0) -> None:
    for _ in range(count):
        clock.begin_step()
        device.work(1)
        clock.enter("forward")
        device.work(forward)
        clock.enter("backward")
        device.work(5)
        clock.enter("other")
        clock.end_step()


def ends(clock: CudaClock) -> list[int]:
    """When steps ended, in the time that was measured."""
    return list(accumulate(clock.step_times.kept))


def phases(clock: CudaClock) -> dict[str, float]:
    return {name: clock.phases[NUMBER[name]] / MS for name in ("load", "forward", "backward", "other")}


def test_phases_are_the_time_between_events(device: Device) -> None:
    clock = CudaClock(DEVICE)
    clock.start()
    make_steps(clock, device, 10)
    clock.stop()
    assert phases(clock) == pytest.approx({"load": 10, "forward": 30, "backward": 50, "other": 0})
    assert ends(clock) == [round(9 * MS * (number + 1)) for number in range(10)]
    assert clock.seconds == pytest.approx(0.09)


def test_steps_without_marks_are_split_like_those_with(device: Device) -> None:
    clock = CudaClock(DEVICE)
    clock.start()
    make_steps(clock, device, 500)
    clock.stop()
    found = phases(clock)
    assert found == pytest.approx({"load": 500, "forward": 1500, "backward": 2500, "other": 0}, rel=1e-6, abs=1e-3)
    assert sum(clock.phases) == ends(clock)[-1] == 4500 * MS
    assert clock.step_times.steps == 500


def test_a_second_stretch_goes_on_and_what_lies_between_does_not_count(device: Device) -> None:
    clock = CudaClock(DEVICE)
    for _ in range(2):
        clock.start()
        make_steps(clock, device, 40)
        clock.stop()
        device.work(1000)
    assert clock.seconds == pytest.approx(0.72)
    assert ends(clock)[-1] == 720 * MS


def test_the_host_may_say_when_a_phase_began(device: Device) -> None:
    clock = CudaClock(DEVICE)
    clock.start()
    clock.begin_step()
    device.work(2)
    clock.enter("backward")
    device.work(4)
    when = Device.now
    device.work(3)
    clock.since("wait", when)
    clock.enter("other")
    clock.end_step()
    clock.stop()
    assert clock.phases[NUMBER["backward"]] == 4 * MS
    assert clock.phases[NUMBER["wait"]] == 3 * MS


def test_captured_steps_are_split_by_the_shares_of_a_sample(device: Device) -> None:
    clock = CudaClock(DEVICE)
    with clock.sample() as measured:
        make_steps(clock, device, 6, forward=4)
    total = sum(measured)
    assert clock.steps == 0
    assert ends(clock) == []
    clock.capture([value / total for value in measured])
    clock.start()
    for number in range(8):
        clock.begin_step()
        if number in (3, 7):  # four steps run at once
            device.work(4)
            clock.ran()
        clock.end_step()
    clock.stop()
    assert ends(clock) == [number * MS for number in range(1, 9)]
    assert phases(clock) == pytest.approx({"load": 0.8, "forward": 3.2, "backward": 4.0, "other": 0}, abs=1e-4)
    assert sum(clock.phases) == 8 * MS


def test_steps_that_run_when_the_clock_is_stopped_count(device: Device) -> None:
    clock = CudaClock(DEVICE)
    clock.capture([1.0] + [0.0] * (len(clock.phases) - 1))
    clock.start()
    for _ in range(3):
        clock.begin_step()
        clock.end_step()
    device.work(6)
    clock.ran()
    clock.stop()
    assert ends(clock) == [2 * MS, 4 * MS, 6 * MS]
