"""A run learns what was forecast of it when it is kept, and never fails for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import manyhands as mh
from manyhands.record import run_forecast
from manyhands.record.ledger import LEDGER_FILE, keep
from manyhands.record.run import Run, environment
from manyhands.record.run_forecast import learn_forecast
from tests.conftest import BATCH, make_task, quick_fit
from tests.record.forecast_runs import forecast, kept, run


def learnt(made: Run, folder: Path) -> float | None:
    learn_forecast(made, folder)
    return (made.forecast or {}).get("samples_per_second")


def test_the_ledger_of_a_run_is_beside_its_folder(tmp_path: Path) -> None:
    kept(tmp_path, forecast(memory_bytes=5))
    one = run()
    assert learnt(one, tmp_path / "one") == 1000.0
    assert one.forecast == {
        "samples_per_second": 1000.0,
        "interval": [pytest.approx(900.0), pytest.approx(1100.0)],
        "memory_bytes": 5,
        "made": "2026-03-02T09:59:00+00:00",
        "basis": "simulated",
    }
    assert Run.load(one.save(tmp_path / "one")).forecast == one.forecast
    assert learnt(run(), tmp_path / "deeper" / "one") is None
    assert learnt(run(), tmp_path) is None
    assert learnt(run("hogwild"), tmp_path / "one") is None


def test_a_row_of_a_comparison_looks_one_folder_further_up(tmp_path: Path) -> None:
    kept(tmp_path, forecast(speed=1.0), forecast("single", speed=2.0))
    row = tmp_path / "compare" / "ddp"
    assert learnt(run(comparison="x"), row) == 1.0
    kept(tmp_path / "compare", forecast(speed=3.0), when=-5)
    assert learnt(run(comparison="x"), row) == 3.0  # the nearest, though it is older
    assert learnt(run("single", comparison="x"), row) == 2.0


def test_relative_folders_have_parents_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kept(tmp_path, forecast())
    assert learnt(run(), Path("one")) == 1000.0
    assert learnt(run(comparison="x"), Path("compare/one")) == 1000.0


def test_a_forecast_without_a_speed_is_not_learnt(tmp_path: Path) -> None:
    kept(tmp_path, forecast(feasible=False, reason="memory"))
    assert learnt(run(), tmp_path / "one") is None


def test_without_a_ledger_nothing_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_forecast, "read", lambda folder: pytest.fail("read"))
    assert learnt(run(comparison="x"), tmp_path / "compare" / "one") is None


@pytest.mark.parametrize("damage", ["pipe", "folder", "bytes", "raises"])
def test_no_ledger_fails_a_run(damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / LEDGER_FILE
    if damage == "pipe":
        os.mkfifo(file)
    elif damage == "folder":
        file.mkdir()
    else:
        file.write_bytes(b"\xff" * 1000)
    if damage == "raises":
        monkeypatch.setattr(run_forecast, "read", lambda folder: 1 / 0)
    assert learnt(run(), tmp_path / "one") is None


def test_a_fit_and_a_comparison_keep_their_forecasts(tmp_path: Path) -> None:
    """With the real machine, the real label and the real clock."""
    task = make_task(epochs=1)
    keep(
        tmp_path, [forecast("single", 5.0), forecast("ddp:bucket_mb=2", 7.0)], task="mlp", batch_size=BATCH, accumulate=1,
        precision="fp32", device="cpu", environment=environment(),
    )  # fmt: skip
    fitted = quick_fit(task, "single", ranks=1, max_steps=4, run_dir=tmp_path / "one")
    assert fitted.forecast is not None
    assert Run.load(tmp_path / "one").forecast == fitted.forecast
    rows = mh.compare(
        task, ["ddp:bucket_mb=2"], ranks=2, rounds=0, max_steps=4, device="cpu", run_dir=tmp_path / "all", progress=False,
    )  # fmt: skip
    told = {row.label: (row.forecast or {}).get("samples_per_second") for row in rows}
    assert told == {"single": 5.0, "ddp:bucket_mb=2": 7.0}
    assert rows[-1].folder is not None
    assert Run.load(rows[-1].folder).forecast == rows[-1].forecast
    assert "forecast" in str(rows.table()).splitlines()[0]


def test_beside_a_damaged_ledger_the_other_counts(tmp_path: Path) -> None:
    kept(tmp_path, forecast())
    (tmp_path / "compare").mkdir()
    os.mkfifo(tmp_path / "compare" / LEDGER_FILE)
    assert learnt(run(comparison="x"), tmp_path / "compare" / "one") == 1000.0
