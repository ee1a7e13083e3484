"""Tables fit the terminal: nothing is cut off, and what has no room is named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from manyhands.cli import lists, look, tables
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
        heading
        for heading in ("ranks", "threads", "efficiency", "memory", "exact", "lost")
        if heading not in lines[0].split()
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
    lists.show_tasks({"one": "word " * 30, "longer": "short"})
    *lines, _, last = capsys.readouterr().out.splitlines()
    assert last == "manyhands tasks NAME shows the options of one."
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


def hosts_of(*names: str) -> list[dict[str, object]]:
    return [{"rank": rank, "host": host, "peak_memory_bytes": 2**30} for rank, host in enumerate(names)]


@pytest.mark.parametrize("columns", [80, 100])
def test_hosts_are_named_where_a_row_has_several(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    nodes = [f"node{number}" for number in range(1, 7)]
    rows = [run("single", 1e4, per_rank=hosts_of("login")), run("ddp", 3e4, ranks=6, per_rank=hosts_of(*nodes))]
    tables.show_comparison(rows, Path("report.html"), None)
    out = capsys.readouterr().out
    assert "hosts: node1, node2, node3, node4 and 2 more" in out
    assert max(map(len, out.splitlines())) <= columns
    tables.show_comparison([rows[0], run("ddp", 3e4, per_rank=hosts_of("n1", "n1"))], Path("report.html"), None)
    assert "hosts" not in capsys.readouterr().out


def test_rows_with_the_same_reason_share_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    refused = [run("hogwild", 0.0, ranks=n, status="refused", reason="shares memory", rounds=None) for n in (2, 4)]
    tables.show_comparison([*RUNS, *refused], Path("report.html"), None)
    assert "hogwild (2 ranks), hogwild (4 ranks): refused: shares memory" in capsys.readouterr().out


def test_a_busy_machine_stands_above_the_table_and_failures_above_slow_ranks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    busy = {"others_cores": 0.93, "environment": {"cores": 2}}
    slow = {"slow_rank": {"rank": 1, "phase": "load", "behind_ms": 8.0}}
    failed = run("locked", 0.0, status="failed", reason="boom", rounds=None)
    tables.show_comparison([run("single", 1e4, **busy), run("ddp", 3e4, **busy, **slow), failed], Path("page"), None)
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0].startswith("Other processes used 0.9 of 2 cores while this was measured: speeds,")
    assert max(map(len, lines)) <= 80
    assert out.count("Other processes") == 1
    assert lines.index("locked: failed: boom") < lines.index("ddp: rank 1 slow in load, 8.0 ms behind")
    assert "As measured, ddp is 3.0x faster than one process with one thread." in out
    assert "lost: share of each step lost to load, communication and wait" in lines


def test_the_terminal_says_of_every_strategy_where_it_stops_paying(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shared = {"comparison": "a", "environment": {"cores": 8}}
    rows = [
        run("single", 1e4, **shared),
        *(run(name, 1e4 * n, ranks=n, **shared) for name in ("ddp", "hogwild") for n in (1, 2, 4)),
    ]
    tables.show_comparison(rows, Path("report.html"), None)
    out = " ".join(capsys.readouterr().out.split())
    assert out.count("is 2.0x faster on 2 ranks and 4.0x on 4 than on 1: it pays up to 4 ranks, the most tried.") == 2
