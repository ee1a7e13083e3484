"""parameter-server: its rows on every machine, its judge on tables made up, and one real run of a slow worker."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from manyhands.record.run import Run
from manyhands.strategies import make_strategy
from manyhands.studies.lab.experiment import Scale
from manyhands.studies.lab.experiments import parameter_server
from manyhands.studies.lab.experiments.parameter_server import EXPERIMENT, Delayed, progress, seconds_to_target
from manyhands.studies.lab.experiments.parameter_server_verdict import TARGET
from manyhands.studies.lab.part_task import task_of
from manyhands.studies.lab.progress import LabProgress
from manyhands.studies.lab.running import run_parts
from manyhands.studies.lab.table import Row, Table
from manyhands.tasks.glyphs import make

QUICK = Scale(quick=True, cores=2, gpus=0)
SCALES = [Scale(quick, cores, gpus) for quick in (True, False) for cores in (2, 16) for gpus in (0, 1)]
SECONDS = {
    "sync, all alike": 2.0, "bounded, all alike": 2.0, "async, all alike": 2.0,
    "sync, one slow": 8.0, "bounded, one slow": 7.8, "async, one slow": 3.0,
    "sync, one pauses": 8.0, "bounded, one pauses": 5.0, "async, one pauses": 3.0,
}  # fmt: skip


def made_up(without: str = "", **changes: tuple[float, float]) -> Table:
    """Two seeds; `changes` by label with _ for a space and a comma."""
    rows = []
    for part in EXPERIMENT.parts(QUICK):
        target = changes.get(part.label.replace(", ", "_").replace(" ", "_"), (SECONDS[part.label],) * 2)
        late = {} if part.label.startswith("sync") else {"staleness": [0.5, 0.7]}
        rows.append(Row(part, [], {"target": [*target], "accuracy": [0.94, 0.95], **late}))
    return Table(EXPERIMENT, QUICK, [row for row in rows if row.label != without])


@pytest.mark.parametrize("scale", SCALES, ids=str)
def test_rows_can_be_run(scale: Scale):
    parts = list(EXPERIMENT.parts(scale))
    assert [part.label for part in parts] == list(SECONDS)
    for part in parts:
        strategy = make_strategy(part.strategy, part.fit["ranks"])
        assert (strategy.traits.processes or 0) <= max(3, scale.cores)
        assert task_of(part, 0).batch_size % strategy.ranks == 0
    assert EXPERIMENT.device == "cpu"  # whatever else there is


def test_the_slow_worker_sleeps_in_training_and_nobody_else_does(monkeypatch: pytest.MonkeyPatch):
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    images = torch.zeros(1, 1, 28, 28)
    for rank, model in (("0", Delayed(1, 1)), ("1", Delayed(1, 0)), ("1", Delayed(1, 1).eval())):
        monkeypatch.setenv("RANK", rank)
        model(images)
    assert not slept
    always, sometimes = Delayed(1, 1), Delayed(1, 10)
    for _ in range(20):
        always(images)
    assert slept == [parameter_server.DELAY_SECONDS] * 20
    slept.clear()
    for _ in range(20):
        sometimes(images)
    assert slept == [10 * parameter_server.DELAY_SECONDS] * 2  # as long in all


def test_the_time_to_the_target_lies_between_two_evaluations():
    entries = [{"epoch": n, "seconds": 2.0, "test_accuracy": a} for n, a in enumerate((0.4, 0.8, 0.9, 0.8), 1)]
    run = Run("glyphs", "parameter_server", epochs=entries)
    assert seconds_to_target(run, {}) == pytest.approx(5.0)
    assert progress(run)[-1] == (8.0, 0.8)
    assert seconds_to_target(Run("glyphs", "parameter_server", epochs=entries[:2]), {}) is None


def test_the_claim_holds():
    verdict = EXPERIMENT.judge(made_up())
    assert verdict.holds is True
    assert "sync takes 2.0 s to 85%, 4.0x (4.0 to 4.0) that with one slow worker" in verdict.measured
    assert "async is 2.7x (2.7 to 2.7) as fast as sync" in verdict.measured
    assert "Async gradients are 0.6 updates old" in verdict.measured
    assert "every step waits for the slow worker; with asynchronous ones" in verdict.why


@pytest.mark.parametrize(
    ("changes", "holds", "said"),
    [
        ({"sync_one_slow": (2.1, 2.2), "bounded_one_slow": (2.0, 2.1)}, False, "hardly costs time"),
        ({"async_one_slow": (7.9, 8.2)}, False, "no faster than synchronous ones"),
        ({"async_one_slow": (3.0, 8.2)}, None, "faster beside a slow worker differs from seed to seed"),
        ({"bounded_one_pauses": (9.5, 9.9)}, False, "not between the two (one pauses)"),
        ({"bounded_one_slow": (7.0, 9.9)}, None, "differs from seed to seed (one slow)"),
    ],
)
def test_it_needs_every_part_of_it(changes: dict, holds: bool | None, said: str):
    verdict = EXPERIMENT.judge(made_up(**changes))
    assert verdict.holds is holds
    assert said in verdict.why


def test_without_a_row_nothing_can_be_told():
    verdict = EXPERIMENT.judge(made_up(without="async, one slow"))
    assert verdict.holds is None
    assert verdict.measured == f"8 of 9 rows reached {TARGET:.0%}."
    assert verdict.why == '"async, one slow" never reached 85%, or was not measured.'
    table = made_up()
    table.rows = [replace(row, figures={}, problem="parameter_server: no") for row in table.rows]
    assert EXPERIMENT.judge(table).why == "parameter_server: no."


def test_a_slow_worker_gives_its_shares_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Through `run_parts`, with a worker so slow that the other must help on any machine."""
    monkeypatch.setattr(parameter_server, "glyphs", few_digits)

    def few(scale: Scale) -> list:
        [part] = [part for part in EXPERIMENT.parts(scale) if part.label == "async, one pauses"]
        return [replace(part, fit={**part.fit, "epochs": 2}, train_samples=640, batch_size=16)]

    [row] = run_parts(replace(EXPERIMENT, parts=few), QUICK, tmp_path, 1, LabProgress(False))
    [run] = row.runs
    assert run.samples == 2 * 640
    assert row.figure("staleness") >= 0
    assert 0 <= row.figure("waiting") < 1
    assert any("shares of others" in note for note in run.notes)
    [line] = [line for curve in EXPERIMENT.curves for line in curve.lines(Table(EXPERIMENT, QUICK, [row]))]
    assert (line.name, len(line.points)) == ("async", 2)
    assert EXPERIMENT.judge(Table(EXPERIMENT, QUICK, [row])).holds is None


def few_digits(train: int, test: int):
    """Noise instead of digits: drawing them takes seconds where they are not kept."""
    chance = torch.Generator().manual_seed(0)
    pictures = torch.randint(0, 256, (640, 1, 28, 28), dtype=torch.uint8, generator=chance), torch.arange(640) % 10
    return make(train=640, test=100).replace(train=pictures, test=tuple(values[:100] for values in pictures))


@pytest.mark.soak
def test_every_row_runs(tmp_path: Path):
    def short(scale: Scale) -> list:
        return [replace(part, fit={**part.fit, "max_steps": 5}) for part in EXPERIMENT.parts(scale)]

    table = run_parts(replace(EXPERIMENT, parts=short), QUICK, tmp_path, 1, LabProgress(False))
    assert not [row.problem for row in table if row.problem]
    assert len(table.measured("speed")) == 9
