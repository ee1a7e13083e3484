"""without-batchnorm: its rows, and its judge on tables made up."""

import pytest

from manyhands.studies.lab.experiment import Scale
from manyhands.studies.lab.experiments.without_batchnorm import EXPERIMENT, KINDS, batches, label
from manyhands.studies.lab.table import Row, Table
from manyhands.tasks import load_task

WHOLE, QUICK = Scale(quick=False, cores=16, gpus=1), Scale(quick=True, cores=2, gpus=0)
DIVERGED = "the loss of step 12 is nan, not a finite number"


def made_up(scale: Scale = WHOLE, without: str = "", **accuracies: float | None) -> Table:
    """By label or kind; None: it diverged."""
    given = {"BatchNorm": 0.9, "removed": 0.1, "none": 0.85, "group": 0.86, **accuracies}
    rows = []
    for part in EXPERIMENT.parts(scale):
        value = given.get(part.label, given[part.label.partition(",")[0]])
        rows.append(Row(part, [], {"accuracy": [value]} if value is not None else {}, None if value else DIVERGED))
    return Table(EXPERIMENT, scale, [row for row in rows if row.label != without])


@pytest.mark.parametrize("scale", [WHOLE, QUICK], ids=str)
def test_four_kinds_at_two_batch_sizes(scale: Scale):
    parts = EXPERIMENT.parts(scale)
    assert [part.label for part in parts] == [label(kind, batch) for batch in batches(scale) for kind in KINDS]
    assert len({part.fit["epochs"] for part in parts}) == 1


@pytest.mark.parametrize(("batch", "rate"), [(512, 0.2), (2048, 0.8)])
def test_the_published_rows_are_as_published(batch: int, rate: float):
    for part in EXPERIMENT.parts(WHOLE):
        if part.batch_size == batch and part.label.startswith(("BatchNorm", "removed")):
            task = load_task(str(part.task), batch)
            assert task.optimizer(load_task("glyphs").model().named_parameters()).defaults["lr"] == pytest.approx(rate)
            assert task.schedule.shape == "linear"
            assert "clip" not in part.fit


def test_a_net_that_only_guesses_refutes_the_claim():
    verdict = EXPERIMENT.judge(made_up())
    assert verdict.holds is False
    assert "at batch 512 BatchNorm 90.00%, removed 10.00%, none 85.00%, group 86.00%; at batch 2048" in verdict.measured
    assert "the signal fades layer by layer" in verdict.why


def test_a_loss_that_does_not_stay_finite_is_a_result():
    verdict = EXPERIMENT.judge(made_up(removed=None))
    assert verdict.holds is False
    assert "removed diverges" in verdict.measured


def test_a_net_that_learns_bears_it_out():
    assert EXPERIMENT.judge(made_up(removed=0.8)).holds is True


def test_one_batch_size_of_two_tells_nothing():
    assert EXPERIMENT.judge(made_up(**{label("removed", 512): 0.8})).holds is None


def test_nothing_is_said_of_a_run_too_short_for_batchnorm():
    verdict = EXPERIMENT.judge(made_up(QUICK, BatchNorm=0.11))
    assert verdict.holds is None
    assert "with BatchNorm either" in verdict.why


@pytest.mark.parametrize("absent", [label("removed", 512), label("BatchNorm", 2048)])
def test_without_a_row_nothing_can_be_told(absent: str):
    assert EXPERIMENT.judge(made_up(without=absent)).why == "a row that the claim is about is missing."


def test_a_row_that_diverged_has_no_line():
    lines = {line.name: line.points for line in EXPERIMENT.curves[1].lines(made_up(removed=None))}
    assert lines["removed"] == []
    assert lines["none"] == [(512, 85, 85, 85), (2048, 85, 85, 85)]
