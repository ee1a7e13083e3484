"""What the slices of a row show together: its speed, its steps and its phases are of one measurement."""

from __future__ import annotations

import pytest

from manyhands.record.hints import hints
from manyhands.record.run import Run
from manyhands.studies.rounds import take_rounds

BATCH = 100


def fitted(step_ms: float, memory: int = 0) -> Run:
    """A fit of 40 steps in which rank 1 waits for half of the step."""
    phases = [{"forward": step_ms, "wait": 0.0}, {"forward": step_ms / 2, "wait": step_ms / 2}]
    run = Run("task", "ddp", ranks=2, batch_size=BATCH, steps=40, seconds=40 * step_ms / 1000)
    run.samples_per_second = 1000 * BATCH / step_ms
    run.step_ms = {"median": step_ms, "p10": 0.9 * step_ms, "p90": 1.2 * step_ms}
    run.phases_ms = {"forward": 0.75 * step_ms, "wait": 0.25 * step_ms}
    run.phases_source = "measured"
    run.overlapped_communication_ms = step_ms / 10
    run.per_rank = [
        {
            "rank": rank,
            "host": "here",
            "phases_ms": times,
            "stolen_ms": None,
            "peak_memory_bytes": memory,
            "samples": 2000,
        }
        for rank, times in enumerate(phases)
    ]
    run.timeline = [{"rank": 0, "step": 1, "phase": "forward", "start_ms": 0.0, "end_ms": step_ms}]
    return run


@pytest.mark.parametrize(("steps", "expected"), [([10.0, 30.0, 20.0], 20.0), ([30.0], 30.0), ([20.0, 30.0], 25.0)])
def test_speed_step_and_phases_are_those_of_the_median_round(steps: list[float], expected: float) -> None:
    """The table showed the rounds and the chart of phases the whole fit, with opposite winners."""
    run = fitted(5.0, memory=7)
    take_rounds(run, [fitted(step) for step in steps])
    assert run.rounds == [1000 * BATCH / step for step in steps]
    assert run.phases_ms is not None
    assert run.step_ms is not None
    assert sum(run.phases_ms.values()) == pytest.approx(expected)
    assert run.step_ms == {"median": expected, "p10": 0.9 * expected, "p90": 1.2 * expected}
    assert run.samples_per_second == pytest.approx(1000 * BATCH / expected, rel=0.05)
    assert run.overlapped_communication_ms == pytest.approx(expected / 10)
    assert [sum(row["phases_ms"].values()) for row in run.per_rank] == [expected, expected]
    assert run.timeline[0]["end_ms"] in steps


def test_what_the_whole_fit_showed_is_kept_beside_it() -> None:
    run = fitted(5.0, memory=7)
    take_rounds(run, [fitted(20.0)])
    assert run.whole_fit is not None
    assert run.seconds == pytest.approx(run.steps * sum(run.whole_fit["phases_ms"].values()) / 1000)
    assert run.whole_fit["samples_per_second"] == 1000 * BATCH / 5
    assert run.phases_source == "measured"
    assert [(row["host"], row["peak_memory_bytes"], row["samples"], row["stolen_ms"]) for row in run.per_rank] == [
        ("here", 7, 2000, None)
    ] * 2
    again = Run.from_record(run.record())
    assert (again.whole_fit, again.phases_ms, again.rounds) == (run.whole_fit, run.phases_ms, run.rounds)


def test_ranks_that_died_in_a_slice_leave_those_of_the_fit() -> None:
    run, slice_ = fitted(5.0), fitted(20.0)
    slice_.per_rank = slice_.per_rank[:1]
    take_rounds(run, [slice_])
    assert [sum(row["phases_ms"].values()) for row in run.per_rank] == [5.0, 5.0]


def test_slow_steps_of_the_whole_fit_are_no_pause_of_epochs_in_fast_rounds() -> None:
    """The epochs' seconds were held against the steps of the rounds: a busy minute became a pause at every epoch."""
    run = fitted(50.0)
    run.steps, run.seconds = 400, 20.0
    run.epochs = [{"epoch": number, "seconds": 5.0} for number in range(4)]
    take_rounds(run, [fitted(10.0)])
    assert not any("epoch" in hint.sentence for hint in hints(run))
