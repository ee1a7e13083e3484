"""loader-workers: its rows on every machine, its judge on tables made up, and one real run of a few steps."""

from dataclasses import replace
from pathlib import Path

import pytest

from manyhands.studies.lab.experiment import Scale
from manyhands.studies.lab.experiments import loader_workers
from manyhands.studies.lab.experiments.loader_workers import BATCHED, EXPERIMENT, label
from manyhands.studies.lab.progress import LabProgress
from manyhands.studies.lab.running import run_parts
from manyhands.studies.lab.table import Row, Table
from manyhands.training.settings import FitSettings

QUICK = Scale(quick=True, cores=2, gpus=0)
SCALES = [Scale(quick, cores, gpus) for quick in (True, False) for cores in (2, 16) for gpus in (0, 1)]


def made_up(scale: Scale = QUICK, without: str = "", **changes: dict[str, list[float]]) -> Table:
    """The published figures as if they had been measured here, two seeds each; `changes` by label."""
    rows = []
    for part in EXPERIMENT.parts(scale):
        workers = int(part.label[0]) if part.label[0].isdigit() else 0
        found = {**loader_workers.PUBLISHED[workers], **part.published}
        figures = {key: [value, value] for key, value in found.items()} | changes.get(part.label, {})
        rows.append(Row(part, [], figures))
    return Table(EXPERIMENT, scale, [row for row in rows if row.label != without])


@pytest.mark.parametrize("scale", SCALES, ids=str)
def test_rows_can_be_run(scale: Scale):
    parts = list(EXPERIMENT.parts(scale))
    assert len({part.label for part in parts}) == len(parts) == 7
    for part in parts:
        assert FitSettings.of(progress=False, **part.fit).threads == (None if scale.gpus else 1)
        assert ("seconds" in part.published) == (not scale.quick and part.label in map(label, (0, 2, 4)))
    slow = parts[:-1]
    assert all(part.fit.get("capture") == ("off" if scale.gpus else None) for part in slow)  # as published: eager steps
    assert "capture" not in parts[-1].fit


def test_the_published_figures_bear_their_own_claim_out():
    verdict = EXPERIMENT.judge(made_up())
    assert verdict.holds is True
    assert "with four workers it is 3.9x as fast" in verdict.measured
    assert "loading takes 6.4 ms per step without them and 0.5 ms with them" in verdict.measured
    assert "52% of the loading is left (published: 52%)" in verdict.measured
    assert (
        verdict.why == "loading is 85% of a step without workers (published: 85%), and workers do it beside the step."
    )


def test_without_pil_the_verdict_says_who_moves_the_samples(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loader_workers, "find_spec", lambda name: None)
    assert "PIL is not installed, so torch moves each sample" in EXPERIMENT.judge(made_up()).measured


def test_workers_that_only_slow_the_step_down_refute_it():
    table = made_up(**{label(4): {"seconds": [72.0, 80.0], "update": [7.1, 7.2], "load": [0.5, 0.6]}})
    verdict = EXPERIMENT.judge(table)
    assert verdict.holds is False
    assert "share 2 cores" in verdict.why


def test_loading_that_was_cheap_anyway_refutes_it():
    table = made_up(**{label(0): {"seconds": [18.0, 19.0], "load": [0.1, 0.1], "update": [1.1, 1.2]}})
    verdict = EXPERIMENT.judge(table)
    assert verdict.holds is False
    assert "loading is 8% of a step" in verdict.why


def test_seeds_that_disagree_tell_nothing():
    verdict = EXPERIMENT.judge(made_up(**{label(4): {"seconds": [18.2, 91.0]}}))
    assert "is 2.4x (0.80 to 4.00) as fast" in verdict.measured
    assert (verdict.holds, verdict.why) == (None, "it is faster with some seeds and not with others.")


def test_a_gain_without_loading_that_is_hidden_tells_nothing():
    verdict = EXPERIMENT.judge(made_up(**{label(4): {"load": [5.0, 5.0]}}))
    assert verdict.holds is None
    assert "more than half of the loading time is left" in verdict.why


@pytest.mark.parametrize("absent", [label(0), label(4), label(0, affine=False), BATCHED])
def test_without_a_row_nothing_can_be_told(absent: str):
    verdict = EXPERIMENT.judge(made_up(without=absent))
    assert verdict.holds is None
    assert "missing" in verdict.why


def test_loading_is_drawn_beside_the_published_line():
    lines = EXPERIMENT.curves[0].lines(made_up())
    assert [line.name for line in lines if line.points] == [
        "with the affine", "with the affine (published)", "without", "without (published)",
    ]  # fmt: skip
    assert lines[0].points == lines[1].points == [(0, 6.4, 6.4, 6.4), (2, 4.3, 4.3, 4.3), (4, 0.5, 0.5, 0.5)]


def test_a_short_run(tmp_path: Path):
    def few(scale: Scale) -> list:
        chosen = [part for part in EXPERIMENT.parts(scale) if part.label in (label(0), label(0, affine=False), BATCHED)]
        return [
            replace(
                part,
                train_samples=96,
                test_samples=96,
                fit={**part.fit, "max_steps": 2} if "no affine" in part.label else part.fit,
            )
            for part in chosen
        ]

    table = run_parts(replace(EXPERIMENT, parts=few), QUICK, tmp_path, 1, LabProgress(False))
    slow, shorter, batched = table
    assert slow.figure("load") > 0
    assert slow.figure("update") > 0
    assert slow.figure("load") + slow.figure("update") == pytest.approx(1000 * slow.figure("seconds") / 3)
    assert shorter.figure("load") > 0
    assert shorter.figure("seconds") is None  # of fewer steps than the others
    assert batched.figure("accuracy") is not None
    assert EXPERIMENT.judge(table).holds is None  # nothing with four workers
