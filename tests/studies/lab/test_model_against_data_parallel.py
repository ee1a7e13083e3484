"""model-against-data-parallel: its rows on every machine, its judge on tables made up, and one real run of a few steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from manyhands.data import files
from manyhands.record.run import Run
from manyhands.studies.lab.experiment import Scale
from manyhands.studies.lab.experiments.model_against_data_parallel import (
    COST,
    DATA,
    EXPERIMENT,
    HAND,
    MODEL,
    PIPELINE,
    batch_seconds,
    gain,
    label,
    waiting,
)
from manyhands.studies.lab.progress import LabProgress
from manyhands.studies.lab.running import run_parts
from manyhands.studies.lab.table import Row, Table

QUICK = Scale(quick=True, cores=2, gpus=0)


def made_up(scale: Scale = QUICK, **batch: list[float]) -> Table:
    """Two seeds of 1 s per batch, but for the kinds in `batch`."""
    rows = []
    for part in EXPERIMENT.parts(scale):
        kind = next((key for key in batch if part.label.startswith(key.replace("_", " "))), None)
        figures = {"batch": batch[kind] if kind else [1.0, 1.0], "waiting": [0.5, 0.5], "accuracy": [0.93, 0.94]}
        rows.append(Row(part, [], figures))
    return Table(EXPERIMENT, scale, rows)


@pytest.mark.parametrize(
    ("scale", "ranks", "device"),
    [
        (QUICK, [2], "cpu"),
        (Scale(True, 16, 1), [2], "cpu"),
        (Scale(False, 2, 0), [2], "cpu"),
        (Scale(False, 16, 1), [2, 4], "cpu"),
        (Scale(False, 16, 2), [2], "cuda"),
        (Scale(False, 64, 8), [2, 4], "cuda"),
    ],
)
def test_rows_follow_the_devices_there_are(scale: Scale, ranks: list[int], device: str):
    parts = EXPERIMENT.parts(scale)
    assert {part.fit["device"] for part in parts} == {device}
    assert sorted({part.fit["ranks"] for part in parts if "ranks" in part.fit}) == ranks
    by_hand = [part.strategy for part in parts if part.label == label(MODEL, ranks[-1], HAND)]
    assert by_hand == ["model_parallel:balance=" + ("6+5+5+5" if ranks[-1] == 4 else "11+10")]
    alone = [part.fit.get("threads") for part in parts if part.strategy == "single"]
    assert alone == ([None] if device == "cuda" else sorted({scale.cores // ranks[-1], scale.cores}))
    known = {part.label: part.published for part in parts if part.published}
    assert known.keys() == {label(DATA, ranks[-1]), label(MODEL, ranks[-1], HAND)}  # with the most ranks alone
    assert ("batch" in known[label(DATA, ranks[-1])]) == (not scale.quick)


def test_data_parallelism_that_gains_nearly_all_bears_the_claim_out():
    verdict = EXPERIMENT.judge(made_up(data_parallel=[0.52, 0.55], pipeline=[0.76, 0.77]))
    assert verdict.holds is True
    assert "1.000 s per batch and data parallelism 0.535 s, on 2 ranks: 1.9x as long (1.8 to 1.9)" in verdict.measured
    assert "pipeline cut by cost 0.765 s (51% of the gap closed)" in verdict.measured
    assert "ranks of the cut model spent 50% of a step waiting" in verdict.why
    lost = EXPERIMENT.judge(made_up(data_parallel=[0.52, 0.55], pipeline=[1.2, 1.3]))
    assert "pipeline cut by cost 1.250 s (slower still)" in lost.measured  # it read "-54% of the gap closed"
    assert "Accuracy is not judged" in verdict.why


def test_data_parallelism_that_gains_little_refutes_it():
    verdict = EXPERIMENT.judge(made_up(data_parallel=[0.9, 1.1]))
    assert verdict.holds is False
    assert verdict.why.startswith("data parallelism gained less than half of what is possible")
    slower = EXPERIMENT.judge(made_up(data_parallel=[1.2, 1.1]))
    assert "of the gap" not in slower.measured  # there is none to close


def test_seeds_that_disagree_leave_it_open():
    verdict = EXPERIMENT.judge(made_up(data_parallel=[0.9, 0.55]))
    assert verdict.holds is None
    assert "more with one seed than with another" in verdict.why


def test_one_core_tells_nothing():
    verdict = EXPERIMENT.judge(made_up(Scale(True, 1, 0), data_parallel=[0.5, 0.5]))
    assert verdict.holds is None
    assert verdict.why == "2 ranks share 1 core, so none can work while another does."


def test_whole_trainings_on_gpus_must_be_as_accurate_too():
    scale = Scale(False, 16, 4)
    table = made_up(scale, data_parallel=[0.26, 0.27])
    assert EXPERIMENT.judge(table).holds is True
    table.rows = [
        replace(row, figures={**row.figures, "accuracy": [0.89, 0.90]}) if row.label == label(DATA, 4) else row
        for row in table
    ]
    verdict = EXPERIMENT.judge(table)
    assert (verdict.holds, verdict.why) == (False, "the accuracies are 4.0 points apart.")


def test_time_per_batch_is_drawn_over_ranks_where_there_are_several_numbers_of_them():
    chart = EXPERIMENT.curves[0]
    assert chart.lines(made_up()) == []
    lines = {line.name: line for line in chart.lines(made_up(Scale(False, 16, 1)))}
    assert [x for x, *_ in lines[f"{PIPELINE} {COST}"].points] == [2, 4]
    assert [tuple(point[:2]) for point in lines["model parallel (published)"].points] == [(4, 1.616)]


def test_columns_compare_runs_on_as_many_ranks():
    def run(ranks: int, median: float) -> Run:
        return Run("t", "s", ranks=ranks, step_ms={"median": median}, phases_ms={"forward": 30.0, "wait": 10.0})

    others = {label(MODEL, 2, HAND): run(2, 100.0), label(MODEL, 4, HAND): run(4, 200.0), "single": run(1, 50.0)}
    assert [gain(run(ranks, 50.0), others) for ranks in (2, 4, 1)] == [2.0, 4.0, 4.0]
    assert gain(run(2, 50.0), {}) is None
    assert (batch_seconds(run(1, 50.0), {}), waiting(run(1, 50.0), {})) == (0.05, 0.25)
    assert (batch_seconds(Run("t", "s"), {}), waiting(Run("t", "s"), {})) == (None, None)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_real_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """All rows on a few random images: every strategy cuts and trains the model, every figure is read."""
    drawn = (torch.randint(0, 256, (32, 3, 32, 32), dtype=torch.uint8), torch.randint(0, 10, (32,)))
    monkeypatch.setattr(files, "cifar10_split", lambda name: drawn)
    few = [
        replace(part, train_samples=32, test_samples=8, batch_size=16, task="cifar10:width=0.1")
        for part in EXPERIMENT.parts(QUICK)
    ]
    table = run_parts(replace(EXPERIMENT, parts=lambda scale: few), QUICK, tmp_path, 1, LabProgress(False))
    assert [row.problem for row in table] == [None] * 7
    assert all(len(row.figures[column.key]) == 1 for row in table for column in EXPERIMENT.columns)
    assert table.figure(label(MODEL, 2, HAND), "waiting") > table.figure(label(DATA, 2), "waiting")
    assert "s per batch" in EXPERIMENT.judge(table).measured
