"""The result of a comparison: a list with a table, a conclusion and charts."""

from __future__ import annotations

from pathlib import Path

import manyhands as mh
from tests.pages.conftest import make_run


def some() -> mh.Runs:
    failed = make_run("ddp", status="failed", reason="rank 1 of 2 failed in step 3, backward: \x1b[31mRuntimeError")
    return mh.Runs([make_run("single", 1000.0), make_run("hogwild", 1900.0), failed])


def test_it_prints_as_a_table_with_its_conclusion() -> None:
    lines = str(some()).splitlines()
    assert lines[0].split()[:4] == ["strategy", "ranks", "threads", "samples/s"]
    assert [line.split()[0] for line in lines[1:4]] == ["single", "hogwild", "ddp"]
    assert lines[4] == "ddp: failed: rank 1 of 2 failed in step 3, backward: [31mRuntimeError"
    assert lines[-1] == some().conclusion
    assert "hogwild is 1.9x faster than one process" in some().conclusion
    assert repr(mh.Runs()) == "Runs([])"


def test_a_table_is_rows_of_plain_values() -> None:
    rows = some().table()
    assert [(row["label"], row["samples_per_second"], row["status"]) for row in rows] == [
        ("single", 1000.0, "done"),
        ("hogwild", 1900.0, "done"),
        ("ddp", None, "failed"),
    ]
    assert "to target" not in str(rows)
    quick = make_run("single", 1000.0, epochs=[{"epoch": 1, "loss": 1.0, "seconds": 2.5, "test_accuracy": 0.9}])
    assert "2.5 s" in str(mh.Runs([quick]).table(target=0.8))


def test_slices_and_sorting_are_those_of_a_list() -> None:
    runs = some()
    assert isinstance(runs[:2], mh.Runs)
    assert runs[0].strategy == "single"
    assert [run.strategy for run in runs[::-1]] == ["ddp", "hogwild", "single"]
    runs.sort(key=lambda run: -(run.samples_per_second or 0))
    assert [run.strategy for run in runs] == ["hogwild", "single", "ddp"]
    assert "hogwild" in mh.Runs(sorted(runs, key=lambda run: run.strategy)).conclusion


def test_stored_runs_show_themselves_too(tmp_path: Path) -> None:
    for run in some():
        run.save(tmp_path / run.strategy)
    loaded = mh.Runs(mh.Run.load(folder) for folder in sorted(tmp_path.iterdir()))
    assert "<iframe" in loaded._repr_html_()
    assert repr(loaded[2]) == "<Run glyphs · single · 1 rank · 1,000 samples/s · done>"
    assert repr(loaded[0]).startswith("<Run glyphs · ddp · 2 ranks · failed: rank 1 of 2 failed in step 3")
    assert "\x1b" not in repr(loaded[0])
