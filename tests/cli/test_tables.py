"""Tables fit the terminal: nothing is cut off, and what has no room is named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from manyhands.cli import look, tables
from manyhands.record.exports import find_runs
from manyhands.record.run import Run
from manyhands.studies.chaos import KEYS

LONG = {"servers": 2, "mode": "bounded", "staleness": 4}


def run(strategy: str, speed: float, threads: int = 1, **more: object) -> Run:
    fields = {
        "device": "cpu", "threads": threads, "ranks": 1 if strategy == "single" else 2, "batch_size": 32,
        "samples_per_second": speed, "rounds": [speed * 0.9, speed, speed * 1.1], "test": {"accuracy": 0.9},
        "epochs": [{"epoch": 1, "seconds": 12.0, "test_accuracy": 0.9}], "phases_ms": {"communication": 6.0, "wait": 4.0},
        "per_rank": [{"rank": 0, "peak_memory_bytes": 3 * 2**30}], **more,
    }  # fmt: skip
    return Run("glyphs", strategy, **fields)  # type: ignore[arg-type]


RUNS = [
    run("single", 12_345.0),
    run("single", 23_456.0, 2),
    run("ddp", 3e4),
    run("parameter_server", 2e4, options=LONG),
]


@pytest.mark.parametrize("target", [None, 0.9])
@pytest.mark.parametrize("columns", [80, 100])
def test_a_comparison_keeps_every_name_and_says_what_it_leaves_out(
    columns: int, target: float | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At 80 columns the names of the strategies used to vanish."""
    monkeypatch.setenv("COLUMNS", str(columns))
    tables.show_comparison(RUNS, Path("report.html"), target)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    names = (
        "single (1 thread) ",
        "single (2 threads) ",
        "ddp ",
        "parameter_server:servers=2, ",
        " mode=bounded,staleness=4 ",
    )
    assert all(line.startswith(name) for line, name in zip(lines[1:], names, strict=False))
    assert "…" not in "".join(lines)
    assert ("to target" in lines[0]) == (target is not None)
    missing = {
        heading for heading in ("ranks", "threads", "efficiency", "memory", "largest phase") if heading not in lines[0]
    }
    said = re.search(r"\(left out here, in the report: (.*?)\)", " ".join(" ".join(lines).split()))
    assert {*(said[1].split(", ") if said else ())} == missing


@pytest.mark.parametrize("columns", [80, 100])
def test_stored_runs_stand_under_their_comparison_with_whole_names(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Paths used to be cut into pieces of a narrow column."""
    monkeypatch.setenv("COLUMNS", str(columns))
    root = Path("runs")
    compared, alone = "2026-03-01-101112-glyphs-train-640-test-100-compare", "2026-03-02-101112-glyphs-ddp"
    for day, one in enumerate(RUNS):
        copy = Run.from_record({**one.record(), "started": f"2026-03-01T10:1{day}"})
        copy.save(root / compared / f"{copy.strategy}-{day}")
    Run.from_record({**RUNS[2].record(), "started": "2026-03-02T10:11"}).save(root / alone)
    tables.show_runs(find_runs(root), root)
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert max(map(len, lines)) <= columns
    starts = [line.split()[0] for line in lines[1:] if not line.startswith("   ")]
    assert starts == [alone, f"{compared}/", "parameter_server-3", "ddp-2", "single-1", "single-0"]
    assert sum("90.00 %" in line for line in lines) == 5
    tables.show_runs([], root)
    assert capsys.readouterr().out == "no runs in runs\n"


@pytest.mark.parametrize("columns", [80, 100])
def test_lists_keep_their_columns(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    tables.show_tasks({"one": "word " * 30, "longer": "short"})
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith(("one     word", "longer  short", "        word")) for line in lines)
    look.strategies()
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    assert ("where it runs" in lines[0]) == (columns == 100)
    assert "exact: promises the weights that one process would train" in lines


@pytest.mark.parametrize("columns", [80, 100])
def test_a_table_of_faults_has_one_line_a_fault(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """However long: it goes into files and pipes."""
    monkeypatch.setenv("COLUMNS", str(columns))
    row = dict.fromkeys(KEYS)
    row |= {"strategy": "ddp" * 40, "fault": "kill", "detected_seconds": 0.05, "weights_equal": True, "left_behind": []}
    tables.show_faults([row])
    title, line = capsys.readouterr().out.splitlines()
    assert title.split()[:5] == ["strategy", "fault", "rank", "step", "outcome"]
    assert line.split() == ["ddp" * 40, "kill", "-", "-", "-", "0.05", "s", *["-"] * 4, "yes", "nothing"]
