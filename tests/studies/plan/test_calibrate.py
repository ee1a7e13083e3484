"""What a calibration measures, and with how many processes, on a machine that is not there: slices are given."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from manyhands.errors import RankFailed
from manyhands.record.forecast import Forecast
from manyhands.record.run import PHASES, Run
from manyhands.strategies import make_strategy
from manyhands.studies.contenders import contenders, modules_of
from manyhands.studies.doctor.needs import Needs
from manyhands.studies.plan import bench
from manyhands.studies.plan import calibrate as module
from manyhands.studies.plan.bench import idle_load
from manyhands.studies.plan.calibrate import Calibration, calibrate
from manyhands.studies.plan.plan import _finished
from manyhands.studies.plan.transport import between
from manyhands.studies.plan.trials import anchors, rows_tried
from manyhands.studies.slices import MOST, Variant
from manyhands.training.settings import FitSettings
from tests.conftest import make_task


def calibrated(
    monkeypatch: pytest.MonkeyPatch,
    cores: int,
    ranks: list[int],
    free: float = math.inf,
    budget: float = 60.0,
    slices: Callable[[Variant, float], Run] | None = None,
) -> Any:
    """The calibration, the labels of its slices in their order, and among how many processes messages were measured."""
    labels: list[str] = []
    members: list[int] = []

    def slice_of(variant: Variant, seconds: float) -> Run:
        labels.append(variant.label)
        run = Run("toy", "single", batch_size=variant.task.batch_size, phases_ms={"forward": 1.0})
        run.durations_ms, run.seconds = [0.9, 1.1] * 20, 0.04
        return run

    def measured(count: int) -> dict[str, dict[int, float]]:
        members.append(count)
        return {kind: {1024: 1e-5} for kind in ("all_reduce", "gather", "message")}

    monkeypatch.setattr(module, "available_cores", lambda: cores)
    for place in (module, bench):
        monkeypatch.setattr(place, "free_memory", lambda: free)
    monkeypatch.setattr(bench, "run_slice", slices or slice_of)
    monkeypatch.setattr(module, "measure", measured)
    rows = contenders(["ddp"], ranks, 1)
    found: Calibration = calibrate(make_task(batch_size=32), rows, FitSettings.of(), budget, lambda text: None)
    return found, labels, members


def test_crowding_and_messages_are_measured_up_to_the_cores_and_rows_up_to_four(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both were carried on from two and four processes in a straight line, which memory that is shared by 16 does not keep to."""
    found, labels, members = calibrated(monkeypatch, cores=16, ranks=[2, 4, 8, 16])
    assert {f"{count} ranks apart" for count in (2, 4, 8, 16)} <= set(labels)
    assert members == [2, 4, 8, 16]
    assert sorted(found.crowding) == [2, 4, 8, 16]
    assert {ranks for _, ranks, _ in found.trials} == {1, 2, 4}


def test_what_the_budget_was_too_short_for_is_told_with_one_that_is_long_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With 25 s for 46 rows on 16 cores nothing was tried, and forecasts 75 % too high said nothing of it."""
    found, _, _ = calibrated(monkeypatch, cores=16, ranks=[2, 4], budget=0.1)
    assert found.skipped == [
        "4 ranks apart", "trial of ddp on 4 ranks", "trial of ddp on 2 ranks", "single with 16 samples per step",
        "2 ranks apart",
    ]  # fmt: skip
    assert 0 < found.enough_seconds < 60
    assert calibrated(monkeypatch, cores=16, ranks=[2, 4])[0].enough_seconds is None


def test_with_a_short_budget_rows_are_tried_before_everything_else_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """All costs and crowds came first: a budget that was too short for all was spent without a single trial."""
    _, labels, _ = calibrated(monkeypatch, cores=16, ranks=[2, 4, 8, 16])
    first = labels[: len(set(labels))]
    assert first[:4] == [
        "single with 32 samples per step", "single with 2 samples per step", "16 ranks apart",
        "trial of ddp on 4 ranks",
    ]  # fmt: skip
    assert first.index("trial of ddp on 2 ranks") < first.index("8 ranks apart")


def test_the_pace_of_single_is_a_first_guess_for_everything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices of unknown pace were made twice, a dozen steps first: a second start for each cost a quarter of the budget."""
    paces = {}

    def slice_of(variant: Variant, seconds: float) -> Run:
        paces.setdefault(variant.label, variant.pace)
        variant.pace = 0.01
        run = Run("toy", "single", batch_size=32, phases_ms={"forward": 10.0})
        run.durations_ms, run.seconds = [10.0] * 40, 0.4
        return run

    calibrated(monkeypatch, cores=2, ranks=[2], slices=slice_of)
    assert paces.pop("single with 32 samples per step") is None
    assert set(paces.values()) == {0.02}


def test_where_many_ranks_alone_are_asked_for_a_few_are_tried_all_the_same() -> None:
    """`plan --ranks 8` tried nothing: ddp on two cores was forecast 2.9 times as fast as it was."""
    small = anchors(contenders(["ddp", "parameter_server", "pipeline:chunks=2", "single"], [8, 16], 1))
    assert [(row.name, row.ranks, row.threads) for row in small] == [
        ("ddp", 4, 1), ("parameter_server", 3, 1), ("pipeline:chunks=2", 4, 1),
    ]  # fmt: skip
    assert [row.ranks for row in anchors(contenders(["ddp"], [2, 16], 1))] == [4]
    assert anchors(contenders(["ddp", "hogwild"], [1, 2, 4], 1)) == anchors(contenders(["ddp"], [4, 8], 1)) == []


def test_no_more_than_anybody_asks_for_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _, members = calibrated(monkeypatch, cores=16, ranks=[2])
    assert (sorted(found.crowding), members) == ([2], [2])


def test_ranks_of_slices_evaluate_a_batch_at_the_end_and_hold_what_that_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory was forecast from fits without an evaluation: `single` on glyphs held 20 MiB more than its forecast of 322."""
    tests = []

    def slice_of(variant: Variant, seconds: float) -> Run:
        step = variant.settings.step
        tests.append((variant.task.test is not None, step.eval_batches, step.eval_every >= MOST))
        run = Run("toy", "single", batch_size=32, phases_ms={"forward": 10.0})
        run.durations_ms, run.seconds = [10.0] * 40, 0.4
        return run

    calibrated(monkeypatch, cores=2, ranks=[2], slices=slice_of)
    assert set(tests) == {(True, 1, True)}


def test_reading_that_takes_no_core_is_known_by_its_processor_time() -> None:
    def run_of(seconds: float, used: float | None) -> Run:
        run = Run("toy", "single")
        run.per_rank = [{"rank": 0, "phases_ms": {"load": seconds}, "cpu_ms": {"load": used}}]
        return run

    assert idle_load([run_of(10.0, 1.0), run_of(10.0, 2.0), run_of(10.0, 9.0)]) == pytest.approx(0.8)
    assert idle_load([run_of(10.0, 11.0)]) == idle_load([run_of(0.0, 0.0)]) == idle_load([run_of(1.0, None)]) == 0.0
    assert idle_load([Run("toy", "single")]) == idle_load([]) == 0.0


def test_a_task_whose_steps_fail_is_told_by_what_failed() -> None:
    """It ended in a KeyError, after the whole budget."""
    task = make_task(optimizer=partial(torch.optim.SGD, lr=math.inf))
    rows = contenders(["ddp"], [2], 1)
    with pytest.raises(
        RankFailed, match=r"plan measures steps of `single` first, and they failed: .* loss of step \d+ is"
    ):
        calibrate(task, rows, FitSettings.of(), 60.0, lambda text: None)


def test_steps_of_many_seconds_are_carried_on_from_smaller_batches_and_the_budget_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With steps of 12 s, `plan --budget 30` took three minutes, two of them for a dozen steps of the whole batch."""
    monkeypatch.setattr(module, "needs", lambda job, free: Needs(0, 0, 0, 10.0, 0.0, 0, 0.2))  # 0.2 s per sample
    steps: list[tuple[str, int]] = []

    def slice_of(variant: Variant, seconds: float) -> Run:
        count = max(variant.fewest, round(seconds / (variant.pace or 1e-3)))
        steps.append((variant.label, count))
        samples = variant.task.batch_size
        variant.pace = 0.2 * samples
        phases = {**dict.fromkeys(PHASES, 0.0), "forward": 200.0 * samples}
        run = Run("toy", "single", batch_size=samples, phases_ms=phases)
        run.durations_ms, run.seconds = [200.0 * samples] * count, 0.2 * samples * count
        run.per_rank = [{"rank": 0, "phases_ms": phases, "peak_memory_bytes": 1000 + samples}]
        return run

    found, _, _ = calibrated(monkeypatch, cores=2, ranks=[2], budget=20.0, slices=slice_of)
    assert steps[:2] == [("single with 4 samples per step", 2), ("single with 2 samples per step", 5)]
    assert all("32" not in label for label, _ in steps if label.startswith("single"))
    assert found.memory[32.0] == 1004 + 28 * 10.0
    whole = between({size: part["forward"] for size, part in found.parts[1].items()}, 32)
    assert whole == pytest.approx(6.4)


def test_ranks_that_do_not_fit_into_memory_are_not_started_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _, _ = calibrated(monkeypatch, cores=16, ranks=[2, 4, 8, 16], free=700 * 2**20)
    assert sorted(found.crowding) == [2, 4, 8]


def test_a_start_includes_what_is_tried_once_for_all_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices stopped trying their task out each time, and a fit by itself was forecast to start 3 s earlier than it does."""

    def slice_of(variant: Variant, seconds: float) -> Run:
        assert variant.settings.tried is not None
        variant.settings.tried.seconds = 3.0
        variant.settings.tried.prepare_seconds = {"pipeline": 2.0}
        run = Run("toy", "single", batch_size=variant.task.batch_size, phases_ms={"forward": 1.0}, startup_seconds=0.5)
        run.durations_ms, run.seconds, run.timings = [1.0] * 40, 0.04, {"checks": 0.25}
        return run

    found, _, _ = calibrated(monkeypatch, 2, [2], slices=slice_of)
    assert found.startup_seconds == 3.25
    assert found.prepare_seconds == {"pipeline": 2.0}
    one = Forecast("pipeline:chunks=4", 2, samples_per_second=100.0, interval=(90.0, 110.0), memory_bytes=1.0)
    others = [_finished(replace(one, strategy=name), found, 1, None) for name in ("single", "pipeline:chunks=4")]
    assert others[1].seconds == pytest.approx(others[0].seconds + 2.0), (
        "a pipeline was forecast to start before it is cut"
    )


def test_single_is_measured_once_for_its_row_and_for_what_a_step_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread with the whole batch was sliced twice in every round: once as a cost, once as a row."""
    found, labels, _ = calibrated(monkeypatch, cores=2, ranks=[2])
    assert "trial of single, 1 thread" not in labels
    assert labels.count("single with 32 samples per step") == bench.ROUNDS
    assert len(found.trials["single", 1, 1]) == bench.ROUNDS


def test_the_luck_of_steps_is_their_spread_around_one(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _, _ = calibrated(monkeypatch, cores=2, ranks=[2])
    assert {round(step, 6) for step in found.luck} == {0.9, 1.1}


def test_ranks_import_what_any_row_needs_whether_it_is_tried_or_not() -> None:
    """Without trials the memory of every row was forecast 23 % too low: the server had not imported what ddp's ranks need."""
    modules = modules_of(contenders(["single", "ddp", "fsdp"], [2], 1), FitSettings.of(progress=False))
    assert {*make_strategy("fsdp", 2).traits.preload, *make_strategy("ddp", 2).traits.preload} <= set(modules)
    assert len(modules) == len(set(modules))


def test_with_little_time_single_with_all_cores_is_tried_first() -> None:
    """It was the last: 16 threads were forecast from one, half as fast as they are."""
    rows = rows_tried(contenders(["ddp", "hogwild"], [2, 4, 8], None))
    assert [(row.asked, row.ranks) for row in rows[:3]] == [("single", 1), ("ddp", 4), ("hogwild", 4)]
    assert rows[0].threads == max(row.threads or 0 for row in rows)
