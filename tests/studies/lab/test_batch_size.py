"""batch-size: its rows, its judge on tables made up, and one real run of a few steps."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from manyhands.data import files
from manyhands.studies.lab.experiment import Scale
from manyhands.studies.lab.experiments.batch_size import BATCHES, EXPERIMENT, PUBLISHED, RECIPES, label
from manyhands.studies.lab.progress import LabProgress
from manyhands.studies.lab.running import run_parts
from manyhands.studies.lab.table import Row, Table

WHOLE, QUICK = Scale(quick=False, cores=16, gpus=1), Scale(quick=True, cores=2, gpus=0)
TRAINING = {128: 0.995, 256: 0.996, 512: 0.998, 1024: 0.999, 2048: 0.999}


def made_up(scale: Scale = WHOLE, without: str = "", **changes: dict[str, list[float]]) -> Table:
    """The published accuracies as if they had been measured here; `changes` by label."""
    rows = []
    for part in EXPERIMENT.parts(scale):
        batch = part.batch_size or 0
        figures = {"accuracy": [PUBLISHED.get(batch, 0.93)], "fitted": [TRAINING[batch]], "speed": [2e4]}
        rows.append(Row(part, [], figures | changes.get(part.label, {})))
    return Table(EXPERIMENT, scale, [row for row in rows if row.label != without])


def test_five_batch_sizes_by_two_recipes():
    parts = EXPERIMENT.parts(WHOLE)
    assert [(part.batch_size, part.task) for part in parts] == [
        (batch, f"cifar10:recipe={recipe}") for recipe in RECIPES for batch in BATCHES
    ]
    assert [part.published.get("accuracy") for part in parts] == [0.953, 0.951, 0.949, 0.941, *([None] * 6)]
    assert {part.fit["precision"] for part in parts} == {"bf16"}
    assert len({part.fit["epochs"] for part in parts}) == 1  # both recipes are trained for as long


def test_quick_fits_are_not_laid_beside_published_ones():
    parts = EXPERIMENT.parts(QUICK)
    assert not any(part.published for part in parts)
    assert all(part.train_samples and "small" in str(part.task) for part in parts)


def test_the_published_figures_bear_their_own_claim_out():
    verdict = EXPERIMENT.judge(made_up())
    assert verdict.holds is True
    assert "test accuracy goes from 95.30% at 128 to 93.00% at 2048" in verdict.measured
    assert "training accuracy from 99.50% to 99.90%" in verdict.measured
    assert "with our recipe" in verdict.measured


@pytest.mark.parametrize(
    ("figures", "holds", "why"),
    [
        ({"accuracy": [0.958], "fitted": [0.999]}, False, "large batches validate better here."),
        ({"accuracy": [0.941], "fitted": [0.95]}, False, "they make fewer updates."),
        ({"accuracy": [0.952], "fitted": [0.999]}, None, "within what another seed changes (about 0.3%)."),
        ({"accuracy": [0.31], "fitted": [0.35]}, None, "one of these knows 35% of its training images."),
    ],
)
def test_other_figures(figures: dict[str, list[float]], holds: bool | None, why: str):
    verdict = EXPERIMENT.judge(made_up(**{label(1024, "published"): figures}))
    assert verdict.holds is holds
    assert verdict.why.endswith(why)


def test_a_claim_holds_only_with_every_seed():
    two = {"accuracy": [0.953, 0.940], "fitted": [0.99, 0.99]}
    other = {"accuracy": [0.941, 0.941], "fitted": [0.999, 0.999]}
    table = made_up(**{label(128, "published"): two, label(1024, "published"): other})
    assert EXPERIMENT.judge(table).holds is None


@pytest.mark.parametrize("absent", [label(128, "published"), label(1024, "published")])
def test_without_a_row_nothing_can_be_told(absent: str):
    assert EXPERIMENT.judge(made_up(without=absent)).why == "a row that the claim is about is missing."


def test_accuracy_by_batch_size_is_drawn_beside_the_published_line():
    lines = {line.name: line for line in EXPERIMENT.curves[0].lines(made_up()) if line.points}
    assert lines["test (published)"].points[0] == pytest.approx((128, 95.3, 95.3, 95.3))
    assert lines["training, ours"].points[-1] == pytest.approx((2048, 99.9, 99.9, 99.9))
    assert len(lines) == 5


@pytest.mark.soak  # a fit of MobileNetV2, small as it is, takes some seconds
def test_a_short_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    split = torch.randint(0, 256, (64, 3, 32, 32), dtype=torch.uint8), torch.arange(64) % 10
    monkeypatch.setattr(files, "cifar10_split", lambda name: split)

    def few(scale: Scale) -> list:
        one = EXPERIMENT.parts(scale)[0]
        return [replace(one, train_samples=32, test_samples=16, batch_size=16, fit={"max_steps": 1, "threads": 1})]

    [row] = run_parts(replace(EXPERIMENT, parts=few), QUICK, tmp_path, 1, LabProgress(False))
    assert 0 <= row.figure("accuracy") <= 1
    assert 0 <= row.figure("fitted") <= 1
    assert row.figure("fitted") * 16 == pytest.approx(round(row.figure("fitted") * 16))  # of as many as are tested
