"""Every strategy tells a timeline; where a closed form is known, the simulation gives it."""

from __future__ import annotations

from functools import partial

import pytest

from manyhands.strategies import make_strategy
from manyhands.strategies.contract import processes
from manyhands.strategies.table import TABLE
from manyhands.strategies.timeline import Stage
from manyhands.studies.plan.events import Outcome, run
from tests.studies.plan.given_costs import GivenCosts

STEP = 3e-3  # of 32 samples on one rank


def simulated(spec: str, ranks: int | None = 2, cores: float = 64, steps: int = 16, **costs: object) -> Outcome:
    strategy = make_strategy(spec, None if spec == "single" else ranks)
    assert strategy.traits.timeline is not None
    count = max(processes(strategy), strategy.ranks)
    chosen = GivenCosts(**costs)  # type: ignore[arg-type]
    return run(partial(strategy.traits.timeline, chosen), [0] * count, cores, steps=steps, warm=steps // 2)


@pytest.mark.parametrize("name", TABLE)
def test_every_strategy_tells_its_timeline(name: str) -> None:
    found = simulated(name)
    assert 0 < found.step_seconds <= 1.01 * STEP
    assert sum(found.mean(2 if name != "single" else 1).values()) == pytest.approx(found.step_seconds)


@pytest.mark.parametrize("name", ["ddp", "hogwild", "fsdp", "local_sgd", "locked", "parameter_server"])
def test_without_costs_of_its_own_a_strategy_divides_the_step_by_its_ranks(name: str) -> None:
    assert simulated(name, 4).step_seconds == pytest.approx(STEP / 4)


@pytest.mark.parametrize("stages", [2, 4, 8])
@pytest.mark.parametrize("chunks", [4, 8])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_a_pipeline_has_the_bubble_of_the_closed_form(schedule: str, chunks: int, stages: int) -> None:
    """(chunks + stages - 1) / chunks of the work of a stage: the share (stages - 1) / (chunks + stages - 1) is waiting."""
    equal = tuple(Stage(1 / stages, 1 / stages, 1 / stages, 0.0) for _ in range(stages))
    spec = f"pipeline:schedule={schedule},chunks={chunks},weights=along"
    found = simulated(spec, stages, stages=equal)
    assert found.step_seconds == pytest.approx(STEP / stages * (chunks + stages - 1) / chunks, rel=1e-6)


def test_both_stages_work_on_the_messages_between_them() -> None:
    """Forecasts of pipelines were far too fast where chunks are small: sending was taken to cost nobody anything.

    A chunk is sent and received on its way there and back; a message and its header take 0.1 ms each at either end.
    """
    free, handled = (simulated("pipeline:chunks=4,weights=along", handled=cost) for cost in (0.0, 1e-4))
    assert handled.mean(2)["communication"] == pytest.approx(4 * 2 * 2e-4)
    assert handled.step_seconds >= free.step_seconds + 4 * 2 * 2e-4


def test_weight_gradients_in_idle_time_make_a_pipeline_shorter() -> None:
    along = simulated("pipeline:chunks=4,weights=along").step_seconds
    assert STEP / 2 < simulated("pipeline:chunks=4,weights=late").step_seconds < along


def test_all_but_one_stage_of_model_parallel_wait() -> None:
    found = simulated("model_parallel")
    assert found.step_seconds == pytest.approx(STEP)
    assert found.mean(2)["wait"] == pytest.approx(STEP / 2)


def test_a_lock_around_the_whole_step_leaves_nothing_parallel() -> None:
    assert simulated("locked:mode=whole", 4).step_seconds == pytest.approx(STEP, rel=0.15)
    assert simulated("locked:mode=free", 4).step_seconds == pytest.approx(STEP / 4, rel=0.15)


def test_handing_on_the_turn_takes_the_longer_the_more_ranks_there_are() -> None:
    """Turns were handed on in no time: four ranks take three times, then once to the first, and once to let all go on."""
    assert simulated("locked", 4, latency=1e-3).step_seconds == pytest.approx(STEP / 4 + 5e-3)
    assert simulated("locked", 16, latency=1e-3).step_seconds == pytest.approx(STEP / 16 + 17e-3)


def test_updates_under_a_lock_are_a_floor() -> None:
    """Four ranks whose updates take longer than their share of the rest queue for the lock."""
    found = simulated("locked:mode=free", 4, update=1e-3)
    assert found.step_seconds == pytest.approx(4e-3, rel=0.1)


def test_a_synchronous_server_adds_its_update_to_every_step() -> None:
    assert simulated("parameter_server", 4, update=1e-3).step_seconds == pytest.approx(STEP / 4 + 1e-3, rel=0.01)


def test_more_ranks_than_cores_gain_nothing() -> None:
    assert simulated("hogwild", 8, cores=2).step_seconds == pytest.approx(simulated("hogwild", 2).step_seconds)


def test_local_sgd_pays_for_communication_once_in_a_period() -> None:
    assert simulated("local_sgd:period=8", latency=8e-3).step_seconds == pytest.approx(STEP / 2 + 1e-3, rel=0.01)
    assert simulated("ddp", latency=8e-3).step_seconds == pytest.approx(STEP / 2 + 8e-3, rel=0.01)


def test_replicas_in_threads_queue_for_the_interpreter() -> None:
    """With passes that are Python alone, threads gain nothing, and processes do."""
    threads = simulated("balanced_data_parallel", fixed=10e-3).step_seconds
    assert threads > 1.5 * simulated("ddp", fixed=10e-3).step_seconds


def test_hybrid_sums_over_replicas_what_a_stage_holds() -> None:
    found = simulated("hybrid:replicas=2,stages=2,chunks=4", 4, latency=0.0)
    assert found.step_seconds == pytest.approx(STEP / 4 * 5 / 4)
