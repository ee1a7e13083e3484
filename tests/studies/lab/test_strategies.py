"""strategies: its rows on every machine, its judge on tables made up, and one real run of a few steps."""

from dataclasses import replace
from pathlib import Path

import pytest

from manyhands.record.run import Run
from manyhands.strategies import make_strategy
from manyhands.studies.lab.experiment import Part, Scale
from manyhands.studies.lab.experiments.strategies import EXPERIMENT, busiest, label, ranks, the_others
from manyhands.studies.lab.progress import LabProgress
from manyhands.studies.lab.running import run_parts
from manyhands.studies.lab.table import Row, Table
from manyhands.training.settings import FitSettings

QUICK = Scale(quick=True, cores=2, gpus=0)
SCALES = [Scale(quick, cores, gpus) for quick in (True, False) for cores in (2, 16) for gpus in (0, 1, 4)]
SPEEDS = {"no workers": 100.0, "workers": 300.0, "batched": 1000.0}  # whoever trains


def made_up(scale: Scale = QUICK, without: str = "", **speeds: list[float]) -> Table:
    """Everybody as fast as their loader, unless `speeds` says otherwise by label."""
    rows = []
    for part in EXPERIMENT.parts(scale):
        usual = SPEEDS[part.label.split(", ")[1]]
        rows.append(Row(part, [], {"speed": speeds.get(part.label, [usual, usual])}))
    return Table(EXPERIMENT, scale, [row for row in rows if row.label != without])


@pytest.mark.parametrize("scale", SCALES, ids=str)
def test_rows_can_be_run(scale: Scale):
    parts = list(EXPERIMENT.parts(scale))
    assert len({part.label for part in parts}) == len(parts)
    for part in parts:
        fit = dict(part.fit)
        assert make_strategy(part.strategy, fit.pop("ranks")).ranks in (1, ranks(scale))
        assert FitSettings.of(progress=False, **fit).device == ("auto" if scale.gpus > 1 else "cpu")
    assert ranks(scale) == (4 if scale.gpus == 4 else 2 if scale.cores == 2 else 8)


def test_loaders_are_unequal_as_published_and_equal_elsewhere():
    sixteen = {part.label: part for part in EXPERIMENT.parts(Scale(quick=False, cores=16, gpus=0))}
    processes = {name: part.fit["loader_workers"] for name, part in sixteen.items()}
    assert processes["baseline, no workers"] == processes["ddp x8, no workers"] == 0
    assert processes["baseline, workers"] == processes["data_parallel x8, workers"] == processes["ddp x1, workers"] == 4
    assert processes["ddp x8, workers"] == 1  # for each of its ranks
    assert sixteen["ddp x8, workers"].published["speed"] == pytest.approx(600_000 / 26.11)


def test_a_speed_up_that_goes_with_equal_loaders_bears_the_claim_out():
    verdict = EXPERIMENT.judge(made_up())
    assert verdict.holds is True
    assert "ddp on 2 ranks with loader workers is 3.00x as fast as the baseline without any." in verdict.measured
    assert "With workers for both it is 1.00x as fast" in verdict.measured
    assert "each rank has one CPU core; one process with 2 threads is 1.00x as fast as with one." in verdict.measured


def test_a_speed_up_that_stays_refutes_it():
    verdict = EXPERIMENT.judge(made_up(**{"ddp x2, workers": [400.0, 450.0]}))
    assert verdict.holds is False
    assert "ddp on 2 ranks stays 1.42x (1.33 to 1.50) as fast with equal loaders. A core is busy" in verdict.why


def test_no_speed_up_at_all_refutes_it():
    verdict = EXPERIMENT.judge(made_up(**{"ddp x2, workers": [80.0, 90.0]}))
    assert verdict.holds is False
    assert "no speed-up to explain" in verdict.why


def test_seeds_on_either_side_tell_nothing():
    verdict = EXPERIMENT.judge(made_up(**{"ddp x2, workers": [290.0, 400.0]}))
    assert (verdict.holds, "with equal loaders ddp is faster with some seeds" in verdict.why) == (None, True)
    verdict = EXPERIMENT.judge(made_up(**{"ddp x2, workers": [90.0, 300.0]}))
    assert (verdict.holds, "with unequal loaders ddp is faster with some seeds" in verdict.why) == (None, True)


def test_several_gpus_are_not_called_cores():
    verdict = EXPERIMENT.judge(made_up(Scale(quick=False, cores=16, gpus=8)))
    assert verdict.holds is True
    assert "core" not in verdict.measured


@pytest.mark.parametrize("absent", ["baseline, no workers", "baseline, workers", "ddp x2, workers", "ddp x2, batched"])
def test_without_a_row_nothing_can_be_told(absent: str):
    verdict = EXPERIMENT.judge(made_up(without=absent))
    assert verdict.holds is None
    assert "missing" in verdict.why


def test_use_is_that_of_the_cores_the_run_could_have():
    used = {"cores": [{"core": core, "mean_percent": percent} for core, percent in enumerate((20.0, 90.0, 0.0, 0.0))]}
    run = Run("mnist", "ddp", device="cpu", environment={"cores": 2}, usage=used)  # two of the machine's four
    assert (busiest(run, {}), the_others(run, {})) == (0.9, 0.2)
    gpus = {"gpus": [{"gpu": gpu, "mean_percent": percent} for gpu, percent in enumerate((8.0, 1.0, 1.0))]}
    run = Run("mnist", "ddp", device="cuda:0", environment={"cores": 2}, usage=gpus)
    assert (busiest(run, {}), the_others(run, {})) == (0.08, 0.01)
    assert busiest(Run("mnist", "ddp"), {}) is None  # too short to look


def test_a_short_run(tmp_path: Path):
    def few(scale: Scale) -> list[Part]:
        chosen = ("baseline, no workers", label(scale, "ddp", "no workers"))
        return [
            replace(part, train_samples=96, test_samples=96) for part in EXPERIMENT.parts(scale) if part.label in chosen
        ]

    table = run_parts(replace(EXPERIMENT, parts=few), QUICK, tmp_path, 1, LabProgress(False))
    baseline, ddp = table
    assert baseline.figure("speed") > 0
    assert ddp.figure("accuracy") == baseline.figure("accuracy")  # exact, whatever loads
    assert [row.runs[0].steps for row in table] == [3, 3]
    assert EXPERIMENT.judge(table).holds is None
