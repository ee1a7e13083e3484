"""Forecasts from a calibration that was not measured but chosen, so that every figure can be told beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from manyhands.record.run import Run
from manyhands.strategies.job import StepSettings
from manyhands.strategies.pipeline import Pipeline
from manyhands.studies.contenders import contenders
from manyhands.studies.doctor.needs import Needs
from manyhands.studies.plan.calibrate import Calibration
from manyhands.studies.plan.forecasts import Forecaster, Place
from manyhands.studies.plan.link import Link
from manyhands.studies.plan.transport import Transport, between
from manyhands.studies.plan.trials import rows_tried
from manyhands.task import Task
from manyhands.training.build import build
from tests.conftest import make_task

MIB = 2**20


def slice_of(step_ms: float, ranks: int = 2, batch: int = 32, peak: float | None = 300 * MIB) -> Run:
    run = Run("toy", "ddp", ranks=ranks, batch_size=batch, phases_ms={"forward": step_ms})
    run.durations_ms = [step_ms] * 40
    run.communication_bytes = 1000.0 * ranks
    run.per_rank = [{"rank": rank, "peak_memory_bytes": peak} for rank in range(ranks)]
    return run


def task_of(samples: int) -> Task:
    """Batches of 32 of them."""
    return make_task(batch_size=32, train=(torch.zeros(samples, 20), torch.zeros(samples, dtype=torch.int64)))


def calibration(cores: int = 64, **changes: Any) -> Calibration:
    """A step of 32 samples takes 8 ms on one rank, half of it for half of the samples; nothing else costs anything."""
    job = build(task_of(320), StepSettings())
    whole = {"forward": 3e-3, "backward": 5e-3, "update": 0.0, "load": 0.0, "other": 0.0}
    parts = {1: {float(32 / 2**k): {name: value / 2**k for name, value in whole.items()} for k in range(6)}}
    fields: dict[str, Any] = {
        "job": job,
        "needs": Needs(8 * MIB, 8 * MIB, 16 * MIB, MIB, 0.0, 0, None),
        "cores": cores,
        "parts": parts,
        "crowding": {},
        "transport": Transport(),
        "copy_per_byte": 0.0,
        "trials": {},
        "refusals": {},
        "memory": {float(32 / 2**k): (132.0 + 32 / 2**k) * MIB for k in range(6)},  # 32 of them the model's
        "startup_seconds": 1.0,
    }
    return Calibration(**{**fields, **changes})


def forecasts(
    specs: Sequence[str], ranks: Sequence[int], found: Calibration, place: Place | None = None
) -> dict[tuple[str, int], Any]:
    rows = contenders(specs, ranks, 1)
    forecaster = Forecaster(found, rows, place or Place())
    return {(row.name, row.ranks): forecaster.forecast(row) for row in rows}


def test_what_was_tried_is_reported_as_it_was() -> None:
    found = calibration(trials={("ddp", 2, 1): [slice_of(5.0), slice_of(4.0), slice_of(4.2)]})
    one = forecasts(["ddp"], [2], found)["ddp", 2]
    assert one.basis == "measured"
    assert one.samples_per_second == pytest.approx(32 / 4.2e-3)
    low, high = one.interval
    assert low < one.samples_per_second < high
    assert (high - low) / one.samples_per_second > 0.2  # the slices differ by a quarter
    assert one.memory_bytes == 300 * MIB


def test_what_was_not_tried_is_simulated() -> None:
    one = forecasts(["ddp"], [8], calibration())["ddp", 8]
    assert one.basis == "simulated"
    assert one.samples_per_second == pytest.approx(32 / 1e-3)
    assert sum(one.phases_ms.values()) == pytest.approx(one.step_ms)


def test_a_simulated_job_loses_to_its_first_steps_what_single_does() -> None:
    """Without trials, `single` itself was forecast 1.4 times as fast as it had just been: a job of a second has slow first steps."""
    slow_start = slice_of(8.0, 1)
    slow_start.durations_ms = [17.0] * 10 + [8.0] * 30  # 90 ms lost
    found = calibration(alone=[slow_start])  # to 30 steps
    assert forecasts(["ddp"], [1], found)["single", 1].step_ms == pytest.approx(11.0)
    trials = {("ddp", 2, 1): [slice_of(14.0)] * 3}  # twice as long as simulated
    assert forecasts(["ddp"], [2, 8], replace(found, trials=trials))["ddp", 8].step_ms == pytest.approx(8.0)


def test_a_simulation_is_corrected_by_the_trial_of_the_same_strategy() -> None:
    """Simulated, two ranks take 4 ms; tried, they took 5: so eight take a quarter more than simulated, too."""
    found = calibration(trials={("ddp", 2, 1): [slice_of(5.0)] * 3})
    both = forecasts(["ddp", "hogwild"], [2, 8], found)
    assert both["ddp", 8].step_ms == pytest.approx(1.25)
    assert both["hogwild", 8].step_ms == pytest.approx(1.0)


def test_of_two_trials_the_nearest_corrects() -> None:
    """Carrying on what two trials seemed to show made 8 and 16 ranks on 16 cores worse: 14 % off in the median, not 12."""
    found = calibration(trials={("ddp", 2, 1): [slice_of(5.0)] * 3, ("ddp", 4, 1): [slice_of(3.0, 4)] * 3})
    assert forecasts(["ddp"], [2, 4, 16], found)["ddp", 16].step_ms == pytest.approx(0.75)


def test_what_was_tried_is_not_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three strategies that had been tried cut a transformer once more after the budget was spent: 18 seconds."""
    tried = {("pipeline", 2, 1): [slice_of(5.0)] * 3}
    monkeypatch.setattr(Pipeline, "prepare", lambda *given: pytest.fail("nothing depends on where it would be cut"))
    assert forecasts(["pipeline"], [2], calibration(trials=tried))["pipeline", 2].step_ms == pytest.approx(5.0)


def test_ranks_that_wait_for_a_disk_do_not_share_cores_for_that() -> None:
    """A slow Dataset under ddp with 8 ranks on 2 cores was forecast 46 % too slow: reading was taken to be computing."""
    parts = {1: {float(32 / 2**k): {"load": 16e-3 / 2**k, "forward": 0.0, "backward": 0.0} for k in range(6)}}
    waiting, computing = (calibration(cores=2, parts=parts, idle_load=share) for share in (1.0, 0.0))
    assert forecasts(["ddp"], [8], waiting)["ddp", 8].step_ms == pytest.approx(2.0)
    assert forecasts(["ddp"], [8], computing)["ddp", 8].step_ms == pytest.approx(8.0)
    assert forecasts(["ddp"], [8], waiting)["ddp", 8].phases_ms["load"] == pytest.approx(2.0)


def test_intervals_are_wider_the_further_a_row_is_from_what_was_tried() -> None:
    found = calibration(trials={("ddp", 2, 1): [slice_of(4.0)] * 3})
    rows = forecasts(["ddp"], [2, 4, 16], found)
    widths = [
        (one.interval[1] - one.interval[0]) / one.samples_per_second for one in rows.values() if one.strategy == "ddp"
    ]
    assert widths == sorted(widths)
    assert widths[0] < widths[-1]


def test_ranks_that_crowd_each_other_are_slower_than_their_share() -> None:
    rows = forecasts(["hogwild"], [2, 4, 8], calibration(crowding={2: 1.1, 4: 1.3}))
    assert rows["hogwild", 2].step_ms == pytest.approx(4 * 1.1)
    assert rows["hogwild", 4].step_ms == pytest.approx(2 * 1.3)
    assert rows["hogwild", 8].step_ms == pytest.approx(1 * 1.7)  # as it grew from 2 to 4


def test_more_cores_than_here_can_be_asked_about() -> None:
    crowded, imagined = calibration(cores=2), Place(cores=8)
    assert forecasts(["hogwild"], [8], crowded)["hogwild", 8].step_ms == pytest.approx(4.0)
    assert forecasts(["hogwild"], [8], crowded, imagined)["hogwild", 8].step_ms == pytest.approx(1.0)


def test_a_link_between_hosts_adds_the_ring_of_its_closed_form() -> None:
    link = Link(1e6, 1e-3)
    found = calibration()
    size = sum(parameter.nbytes for parameter in found.job.model.parameters())
    one = forecasts(["ddp"], [4], found, Place(hosts=4, link=link))["ddp", 4]
    ring = 2 * 3 * (1e-3 + size / 4 / 1e6)
    assert one.step_ms == pytest.approx(2.0 + 1000 * ring)
    assert one.bytes_per_step["network"] == pytest.approx(2 * 3 * size)
    assert one.bytes_per_step["memory"] == pytest.approx(4 * size)  # what the record counts: every rank hands over all


def test_what_shares_memory_is_not_feasible_over_hosts() -> None:
    one = forecasts(["hogwild"], [2], calibration(), Place(hosts=2, link=Link(1e9, 0.0)))["hogwild", 2]
    assert not one.feasible
    assert one.reason == "hogwild shares memory and cannot run over several hosts (hosts: 2); use ddp"
    assert one.samples_per_second is None


def test_what_a_strategy_refuses_is_not_feasible_and_says_why() -> None:
    one = forecasts(["pipeline", "ddp"], [2, 16], calibration())["pipeline", 16]
    assert not one.feasible
    assert "pipeline cannot use more stages than the model has layers (stages: 16" in one.reason


def test_memory_of_an_untried_row_adds_what_was_missing_where_fewer_ranks_were_tried() -> None:
    """Buffers of the transport and of wrappers are in no formula: eight ranks were forecast up to 18 % off."""
    reckoned = forecasts(["ddp"], [8], calibration())["ddp", 8].memory_bytes
    assert reckoned == 136 * MIB
    found = calibration(trials={("ddp", 2, 1): [slice_of(5.0, peak=168 * MIB)]})  # 148 reckoned
    assert forecasts(["ddp"], [2, 8], found)["ddp", 8].memory_bytes == 156 * MIB
    assert forecasts(["fsdp", "ddp"], [8], calibration(memory={}))["ddp", 8].memory_bytes is None


def test_a_rank_that_needs_more_memory_than_there_is_is_not_feasible() -> None:
    """Beside 100 MiB of its own a rank of ddp holds weights, gradients, optimizer state (32 MiB) and 16 samples of 1 MiB."""
    found = calibration()
    assert forecasts(["ddp"], [2], found)["ddp", 2].memory_bytes == 148 * MIB
    one = forecasts(["ddp"], [2], found, Place(memory=120 * MIB))["ddp", 2]
    assert (one.feasible, one.reason) == (False, "a rank needs 148 MiB and may take 120 MiB")


def test_rows_with_most_ranks_are_tried_first_and_large_ones_never() -> None:
    rows = contenders(["ddp", "hogwild"], [1, 2, 4, 8], 1)
    order = [(row.name, row.ranks) for row in rows_tried(rows)]
    assert order[:3] == [("single", 1), ("ddp", 4), ("hogwild", 4)]
    assert all(ranks <= 4 for _, ranks in order)


@pytest.mark.parametrize(("x", "y"), [(0.5, 10.0), (1, 10.0), (2, 15.0), (3, 20.0), (4, 30.0), (6, 50.0)])
def test_between_measured_points_is_the_line_between_them(x: float, y: float) -> None:
    assert between({1: 10.0, 3: 20.0, 5: 40.0}, x) == pytest.approx(y)


def test_a_collective_of_more_members_than_were_tried_grows_as_it_did() -> None:
    tried = {2: {"all_reduce": {1000: 1.0, 2000: 2.0}}, 4: {"all_reduce": {1000: 2.0, 2000: 4.0}}}
    assert Transport(tried).seconds("all_reduce", 1500, 2) == pytest.approx(1.5)
    assert Transport(tried).seconds("all_reduce", 1000, 8) == pytest.approx(4.0)
    assert Transport(tried).seconds("all_reduce", 1000, 1) == 0.0


def test_a_pipeline_sends_activations_over_the_link_and_not_its_gradients() -> None:
    found = calibration()
    one = forecasts(["pipeline"], [2], found, Place(hosts=2, link=Link(1e9, 0.0)))["pipeline", 2]
    assert (
        0 < one.bytes_per_step["network"] < 2 * 32 * 32 * 4 * 1.01
    )  # 32 samples of at most 32 numbers, there and back


def test_what_a_link_adds_is_not_corrected_by_trials_of_this_host() -> None:
    """The ratio of trial to simulation was applied to the time on the network too, which nothing here had measured."""
    link, tried = Link(1e6, 0.0), {("ddp", 2, 1): [slice_of(5.0)] * 3}
    size = sum(parameter.nbytes for parameter in calibration().job.model.parameters())
    one = forecasts(["ddp"], [2], calibration(trials=tried), Place(hosts=2, link=link))["ddp", 2]
    assert one.step_ms == pytest.approx(5.0 + 1000 * size / 1e6)
    assert sum(one.phases_ms.values()) == pytest.approx(one.step_ms)


def test_slow_first_steps_count_as_much_as_the_job_is_short() -> None:
    """A job of a few steps was forecast as fast as the steady part of its trial; phases sum to the step all the same."""
    tried = slice_of(4.0)
    tried.durations_ms[:10] = [8.0] * 10
    short = calibration(job=build(task_of(3200), StepSettings(max_steps=40)), trials={("ddp", 2, 1): [tried] * 3})
    one = forecasts(["ddp"], [2], short)["ddp", 2]
    assert one.step_ms == pytest.approx((40 * 4.0 + 10 * 4.0) / 40)
    assert sum(one.phases_ms.values()) == pytest.approx(one.step_ms)


@pytest.mark.parametrize(("samples", "mean"), [(320, 32.0), (20, 20.0), (40, 20.0)])
def test_speed_counts_the_samples_that_steps_have(samples: int, mean: float) -> None:
    """With a batch of 64 and 20 samples, forecasts counted 64 samples per step: three times what was measured."""
    found = calibration(job=build(task_of(samples), StepSettings()), trials={("ddp", 2, 1): [slice_of(5.0)] * 3})
    assert found.samples_per_step == mean
    rows = forecasts(["ddp", "hogwild"], [2], found)
    assert rows["ddp", 2].samples_per_second == pytest.approx(mean / 5e-3)
    assert rows["hogwild", 2].samples_per_second == pytest.approx(mean / rows["hogwild", 2].step_ms * 1000)
    assert rows["ddp", 2].batch_size == 32  # as the record of a run has it


def test_one_thread_says_nothing_of_two() -> None:
    """`single` with all cores was forecast from its trial with one thread, and within 5 %."""
    rows = contenders(["single"], [2], None)
    narrow, wide = replace(rows[0], threads=1), replace(rows[0], threads=2)
    found = calibration(trials={("single", 1, 1): [slice_of(12.0)] * 3})
    forecaster = Forecaster(found, [narrow, wide], Place())
    one, other = forecaster.forecast(narrow), forecaster.forecast(wide)
    assert (one.basis, other.basis) == ("measured", "simulated")
    assert other.step_ms == pytest.approx(8.0)
    assert other.interval[1] / other.samples_per_second == pytest.approx(1.4)
