"""The clock: phases sum to the step, and communication behind backward is kept apart from what the step waited for."""

from __future__ import annotations

from time import monotonic_ns

from manyhands.record.clock import NUMBER, TRACED_STEPS, Clock
from tests.conftest import make_task, quick_fit


def test_hidden_communication_is_counted_and_drawn_but_no_part_of_the_step() -> None:
    clock = Clock()
    clock.hide(0, 10)  # before the first step: nothing is measured yet
    clock.start()
    for _ in range(TRACED_STEPS.stop):
        clock.begin_step()
        clock.enter("backward")
        began = monotonic_ns()
        clock.hide(began, began + 1000)
        clock.hide(began, began - 1000)  # came back before the last one left, as seen by two threads
        clock.end_step()
    clock.stop()
    assert clock.overlapped == 1000 * TRACED_STEPS.stop
    assert sum(clock.phases) >= sum(clock.step_times.kept) > 0
    assert clock.phases[NUMBER["communication"]] == 0
    drawn = [
        step for step, phase, start, end in clock.trace if phase == NUMBER["communication"] and end - start == 1000
    ]
    assert drawn == list(TRACED_STEPS)


def test_the_timeline_of_ddp_shows_buckets_that_travel_behind_backward() -> None:
    run = quick_fit(make_task("mlp", epochs=1), "ddp:bucket_mb=0.001", ranks=2, max_steps=12)
    assert run.overlapped_communication_ms is not None
    assert run.overlapped_communication_ms > 0
    for rank in range(2):
        mine = [span for span in run.timeline if span["rank"] == rank]
        work = [span for span in mine if span["phase"] == "backward"]
        hidden = [
            span
            for span in mine
            if span["phase"] == "communication"
            and any(
                span["start_ms"] >= other["start_ms"] and span["end_ms"] <= other["end_ms"] + 1e-6 for other in work
            )
        ]
        assert hidden, mine
