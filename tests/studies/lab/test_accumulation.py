"""accumulation: its rows, its judge on tables made up, and real updates of every kind of row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from manyhands.record.run import Run
from manyhands.studies.lab.experiment import Scale
from manyhands.studies.lab.experiments import accumulation
from manyhands.studies.lab.experiments.accumulation import (
    BATCHNORM,
    DOUBLE,
    EPSILON,
    EVEN,
    EXPERIMENT,
    LARGE,
    SINGLE,
    after_training,
    difference,
    label,
)
from manyhands.studies.lab.part_task import task_of
from manyhands.studies.lab.progress import LabProgress
from manyhands.studies.lab.running import run_parts
from manyhands.studies.lab.table import Row, Table

QUICK = Scale(quick=True, cores=2, gpus=0)


def made_up(without: str = "", **figures: dict[str, list[float]]) -> Table:
    """One rounding after one update, ten after training; `figures` by label, with _ for anything else."""
    rows = []
    for part in EXPERIMENT.parts(QUICK):
        off = EPSILON.get(part.label.partition(":")[0], 0.1)
        usual = {"first": [off], "final": [10 * off]} if part.fit["accumulate"] > 1 else {}
        rows.append(Row(part, [], {"updates": [48.0], **usual, **figures.get(part.label, {})}))
    return Table(EXPERIMENT, QUICK, [row for row in rows if row.label != without])


@pytest.mark.parametrize("scale", [QUICK, Scale(False, 16, 1)], ids=str)
def test_every_row_makes_updates_of_the_same_number_of_samples(scale: Scale):
    parts = EXPERIMENT.parts(scale)
    assert len({part.label for part in parts}) == len(parts) == 13
    for part in parts:
        assert part.batch_size is not None
        assert part.train_samples is not None
        assert part.batch_size * part.fit["accumulate"] == LARGE
        tail = part.train_samples % LARGE
        assert tail > LARGE // 4  # the last update of an epoch has parts too,
        assert tail % (LARGE // 4)  # and in four parts the last of them is short


def test_tasks_have_the_precision_of_their_row():
    for kind, dtype in ((SINGLE, torch.float32), (DOUBLE, torch.float64), (BATCHNORM, torch.float64)):
        task = task_of(EXPERIMENT.parts(QUICK)[0], 0).replace(model=accumulation.task(kind).model)
        model = task.model()
        assert {value.dtype for value in model.parameters()} == {dtype}
        assert any(isinstance(layer, torch.nn.BatchNorm2d) for layer in model) == (kind == BATCHNORM)
    assert accumulation.digits("test", 5, torch.float64)[0].dtype == torch.float64


def test_differences_by_rounding_bear_the_claim_out():
    verdict = EXPERIMENT.judge(made_up())
    assert verdict.holds is True
    assert "at most 1e-07 from those of one batch of 128 in float32 and 2e-16 in float64" in verdict.measured
    assert "after 48 updates 1e-06 and 2e-15" in verdict.measured
    assert "BatchNorm, which sees a part at a time, makes it 1e+00." in verdict.measured
    assert verdict.why.startswith("parts are weighted by their samples")


def test_in_float32_a_tipped_relu_is_no_reason_to_doubt_it():
    """A rounding decided which pixel of a pool won, and 48 updates made a thousandth of it; float64 shows why."""
    assert EXPERIMENT.judge(made_up(**{label(SINGLE, 4): {"final": [1e-3]}})).holds is True


@pytest.mark.parametrize(
    ("row", "figures"),
    [
        (label(SINGLE, 4), {"first": [EPSILON[SINGLE], 1e-4]}),
        (label(DOUBLE, 4, "ddp"), {"first": [1e-12]}),
        (label(DOUBLE, 8), {"final": [1e-6]}),
    ],
)
def test_more_than_rounding_refutes_it(row: str, figures: dict[str, list[float]]):
    verdict = EXPERIMENT.judge(made_up(**{row: figures}))
    assert (verdict.holds, verdict.why) == (False, "that is more than another order of sums explains.")


def test_a_row_that_did_not_run_is_named():
    verdict = EXPERIMENT.judge(made_up(**{label(DOUBLE, 2): {"first": [], "final": []}}))
    assert (verdict.holds, verdict.why) == (None, "float64: 2 x 64 did not run.")
    assert "BatchNorm" not in EXPERIMENT.judge(made_up(without=label(BATCHNORM, 4))).measured


def test_differences_are_those_of_weights_and_not_of_statistics():
    one, other = Run("t", "single"), Run("t", "single")
    assert difference(one, other) is None
    one.weights = {"a": torch.tensor([1.0, 4.0]), "1.running_mean": torch.tensor([9.0])}
    other.weights = {"a": torch.tensor([1.5, 5.0]), "1.running_mean": torch.tensor([1.0])}
    assert difference(one, other) == 0.2
    kinds = {label(DOUBLE, 1): other, label(EVEN, 4): one}
    assert (after_training(one, kinds), after_training(other, kinds)) == (0.2, None)
    assert after_training(one, {label(EVEN, 4): one}) is None


def test_a_layer_of_zeros_is_no_difference():
    """Nothing by nothing is no number, and the largest of several was none either."""
    one, other = Run("t", "single"), Run("t", "single")
    one.weights, other.weights = {"a": torch.zeros(2)}, {"a": torch.zeros(2)}
    assert difference(one, other) == 0.0
    one.weights = {"a": torch.full((2,), 1e-9)}
    assert difference(one, other) == pytest.approx(1e-9)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_real_run(tmp_path: Path):
    """Every row for one epoch: equal where it should be, and not where there is a reason."""
    few = [
        replace(part, train_samples=LARGE + 80, fit={**part.fit, "epochs": 1})
        for part in EXPERIMENT.parts(QUICK)
        if part.fit["accumulate"] in (1, 4)
    ]
    table = run_parts(replace(EXPERIMENT, parts=lambda scale: few), QUICK, tmp_path, 1, LabProgress(False))
    assert [row.problem for row in table] == [None] * len(few)
    assert {row.figure("updates") for row in table} == {2.0}
    for row in (label(DOUBLE, 4), label(DOUBLE, 4, "ddp")):
        assert table.figure(row, "first") < 1e-14
        assert table.figure(row, "final") < 1e-13
    assert table.figure(label(EVEN, 4), "first") < 1e-14
    assert table.figure(label(EVEN, 4), "final") > 1e-6
    assert table.figure(label(BATCHNORM, 4), "first") > 1e-6
    assert EXPERIMENT.judge(table).holds is True
