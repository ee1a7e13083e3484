"""Timelines against a clock: cores are shared, locks queue, collectives wait for the last."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from manyhands.strategies.timeline import (
    Act,
    Await,
    Idle,
    Launch,
    Meet,
    Receive,
    Release,
    Send,
    Settle,
    Spare,
    Take,
    Work,
)
from manyhands.studies.plan.events import run


def one_step(*acts: list[Act], cores: float = 8, slowdown: object = None) -> tuple[float, tuple[dict[str, float], ...]]:
    """Seconds of one step in which process i does acts[i], and what each spent on what."""

    def timeline(process: int, step: int) -> Iterator[Act]:
        yield from acts[process]

    slow = slowdown or (lambda busy: 1.0)
    found = run(timeline, [0] * len(acts), cores, slow, steps=1, warm=0)  # type: ignore[arg-type]
    return found.step_seconds, found.phases


def test_work_alone_takes_its_time() -> None:
    seconds, [phases] = one_step([Work("forward", 2.0), Work("update", 1.0)])
    assert seconds == pytest.approx(3.0)
    assert phases == pytest.approx({"forward": 2.0, "update": 1.0})


def test_three_processes_on_two_cores_get_two_thirds_of_one_each() -> None:
    seconds, _ = one_step(*[[Work("forward", 2.0)]] * 3, cores=2)
    assert seconds == pytest.approx(3.0)


def test_who_waits_for_a_disk_takes_no_core() -> None:
    seconds, phases = one_step(*[[Idle("load", 2.0), Work("forward", 0.5)]] * 4, cores=2)
    assert seconds == pytest.approx(3.0)
    assert phases[0] == pytest.approx({"load": 2.0, "forward": 1.0})


def test_busy_neighbours_slow_each_other_down() -> None:
    seconds, _ = one_step(*[[Work("forward", 2.0)]] * 2, slowdown=lambda busy: 1.0 if busy == 1 else 1.25)
    assert seconds == pytest.approx(2.5)


def test_a_collective_begins_with_the_last_and_the_first_waits_for_it() -> None:
    seconds, phases = one_step([Work("forward", 1.0), Meet("sum", 2, 0.5)], [Work("forward", 3.0), Meet("sum", 2, 0.5)])
    assert seconds == pytest.approx(3.5)
    assert phases[0] == pytest.approx({"forward": 1.0, "wait": 2.0, "communication": 0.5})
    assert phases[1] == pytest.approx({"forward": 3.0, "wait": 0.0, "communication": 0.5})


def test_the_slowest_part_of_a_collective_counts() -> None:
    seconds, _ = one_step([Meet("push", 2, 0.5)], [Meet("push", 2, 0.1)])
    assert seconds == pytest.approx(0.5)


def test_a_launched_collective_hides_behind_work() -> None:
    acts: list[Act] = [Launch("bucket", 2, 1.0), Work("backward", 0.75), Await("bucket")]
    seconds, phases = one_step(acts, acts)
    assert seconds == pytest.approx(1.0)
    assert phases[0]["communication"] == pytest.approx(0.25)


def test_a_lock_is_held_by_one_at_a_time() -> None:
    acts: list[Act] = [Take("weights"), Work("update", 1.0), Release("weights")]
    seconds, phases = one_step(acts, acts, acts)
    assert seconds == pytest.approx(3.0)
    assert sum(one.get("wait", 0.0) for one in phases) == pytest.approx(0 + 1 + 2)


def test_a_message_arrives_later_and_the_sender_does_not_wait() -> None:
    seconds, phases = one_step([Send("x", 1.0), Work("forward", 0.5)], [Receive("x"), Work("forward", 0.5)])
    assert seconds == pytest.approx(1.5)
    assert phases[0].get("wait", 0.0) == 0.0


def test_spare_work_fills_the_time_of_waiting_and_the_rest_comes_at_the_end() -> None:
    """A pipeline computes weight gradients while it would wait: counted as waiting, its forecast was too slow."""
    seconds, phases = one_step(
        [Spare("backward", 3.0), Meet("sum", 2, 0.0), Settle()], [Work("forward", 2.0), Meet("sum", 2, 0.0)]
    )
    assert seconds == pytest.approx(3.0)
    assert phases[0]["backward"] == pytest.approx(3.0)
    assert phases[0].get("wait", 0.0) == pytest.approx(0.0)


@pytest.mark.parametrize("nothing", [Spare("backward", 0.0), Work("backward", 0.0), Work("backward", 1e-13)])
def test_work_of_no_length_does_not_hold_a_process_up(nothing: Act) -> None:
    """A pipeline of twelve stages of LeNet, whose first does nothing backwards, was said to wait forever."""
    seconds, _ = one_step(
        [Work("forward", 1.0), nothing, Send("go", 1.0), Settle()], [nothing, Receive("go"), Settle()]
    )
    assert seconds == pytest.approx(2.0)


@pytest.mark.parametrize(("works", "late"), [(0.010, True), (0.001, False)])
def test_who_has_waited_for_long_sleeps_and_wakes_up_late(works: float, late: bool) -> None:
    """Each of 16 stages took longer than messages and work, and model_parallel was forecast half as fast again as it was."""

    def timeline(process: int, step: int) -> Iterator[Act]:
        yield from [Receive("go")] if process else [Work("forward", works), Send("go", 0.0)]

    found = run(timeline, [0, 0], 8, steps=1, warm=0, wake=0.0005)
    assert found.step_seconds == pytest.approx(works + 0.0005 * late)


def test_timelines_that_wait_for_each_other_forever_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"processes \[0, 1\] wait for each other forever"):
        one_step([Receive("x")], [Receive("y")])


def test_phases_of_a_rank_sum_to_the_step() -> None:
    def timeline(process: int, step: int) -> Iterator[Act]:
        yield Work("forward", 1.0 + process)
        yield Meet("sum", 3, 0.25)
        yield Work("update", 0.5)

    found = run(timeline, [0, 0, 0], 2, lambda busy: 1 + 0.1 * (busy - 1), steps=6, warm=2)
    assert sum(found.mean(3).values()) == pytest.approx(found.step_seconds)


def test_a_message_that_arrives_a_rounding_after_its_receiver_is_ready_is_not_missed() -> None:
    """It was delivered to nobody, and the receiver waited forever."""
    late = 0.3 + 5e-13
    seconds, _ = one_step([Send("x", late)], [Work("forward", 0.3), Receive("x")])
    assert seconds == pytest.approx(0.3)
    seconds, _ = one_step([Launch("y", 1, late), Work("forward", 0.3), Await("y")])
    assert seconds == pytest.approx(0.3)
