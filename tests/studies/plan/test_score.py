"""plan --score: every run below a folder held against its forecast, as data and as people read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from manyhands.cli.score_table import show_score
from manyhands.errors import BadInput
from manyhands.record.ledger import LEDGER_FILE
from manyhands.studies.plan.score import matched, score
from tests.record.forecast_runs import HERE, comparison, forecast, kept, run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two comparisons and two fits; one forecast too low, one that ruled a run out, one run nobody forecast."""
    speeds = {"single": 500.0, "ddp": 900.0, "hogwild": 1000.0}
    kept(tmp_path, *(forecast(name, speed, memory_bytes=95) for name, speed in speeds.items()))
    kept(tmp_path, forecast("fsdp", None, feasible=False, reason="memory"))
    comparison("right", tmp_path, single=500.0, ddp=800.0, hogwild=900.0)
    comparison("noise", tmp_path, single=510.0, ddp=905.0, hogwild=900.0)
    run("ddp", 2000.0, per_rank=[{"rank": 0, "peak_memory_bytes": 100}]).save(tmp_path / "fit")
    run("fsdp", 700.0).save(tmp_path / "ruled-out")
    run("locked", 700.0).save(tmp_path / "nobody")
    run("ddp", 700.0, status="failed").save(tmp_path / "failed")
    return tmp_path


def test_every_run_is_held_against_its_forecast(runs: Path) -> None:
    found = score(runs)
    assert json.loads(json.dumps(found)) == found
    assert sorted(found) == ["by_strategy", "scores", "summary"]
    assert len(found["scores"]) == found["summary"]["count"] == 7
    (fit,) = [one for one in found["scores"] if one["comparison"] is None]
    assert (fit["strategy"], fit["forecast"], fit["measured"], fit["error"], fit["held"]) == (
        "ddp", 900.0, 2000.0, -0.55, False,
    )  # fmt: skip
    assert (fit["memory_error"], fit["folder"]) == (pytest.approx(-0.05), str(runs / "fit"))
    overall = found["summary"]
    assert (overall["forecasts"], overall["refused_but_ran"]) == (4, 1)
    assert overall["best"] == {"comparisons": 2, "strict": 1, "within_noise": 2}
    assert {name: figures["count"] for name, figures in found["by_strategy"].items()} == {
        "ddp": 3, "single": 2, "hogwild": 2,
    }  # fmt: skip


def test_a_comparison_alone_finds_the_ledger_above_it(runs: Path) -> None:
    assert score(runs / "right")["summary"]["count"] == 3
    assert score(runs / "right")["summary"]["forecasts"] == 0  # of its own


def test_the_nearest_ledger_counts_and_the_named_folder_last(runs: Path) -> None:
    kept(runs / "right", forecast("ddp", 800.0), when=-9)
    run("hogwild", 1000.0).save(runs / "some" / "where" / "deep")
    by_folder = {Path(one["folder"]).relative_to(runs): one["forecast"] for one in score(runs)["scores"]}
    assert by_folder[Path("right/ddp")] == 800.0
    assert by_folder[Path("noise/ddp")] == 900.0
    assert by_folder[Path("some/where/deep")] == 1000.0


def test_relative_folders(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs)
    assert score(".")["summary"]["count"] == 7
    assert score("right")["summary"]["count"] == 3


def test_nothing_to_score(tmp_path: Path) -> None:
    assert score(tmp_path) == {
        "scores": [],
        "summary": {
            "count": 0, "median_error": None, "p90_error": None, "bias": None, "intervals": 0, "held": 0, "coverage": None,
            "memory_count": 0, "median_memory_error": None, "best": {"comparisons": 0, "strict": 0, "within_noise": 0},
            "forecasts": 0, "refused_but_ran": 0,
        },
        "by_strategy": {},
    }  # fmt: skip
    with pytest.raises(BadInput, match="no folder"):
        score(tmp_path / "missing")


@pytest.mark.parametrize(
    "changes",
    [{"environment": {**HERE, "cpu": "Another"}}, {"when": 5}, {"task": "mnist"}],
    ids=["machine", "later", "task"],
)
def test_other_forecasts_score_nothing(changes: dict[str, Any], tmp_path: Path) -> None:
    kept(tmp_path, forecast(), **changes)
    run().save(tmp_path / "one")
    assert (score(tmp_path)["summary"]["count"], score(tmp_path)["summary"]["forecasts"]) == (0, 1)


def test_damage_costs_no_other_run(runs: Path) -> None:
    (runs / "damaged").mkdir()
    (runs / "damaged" / "run.json").write_text("{")
    with (runs / LEDGER_FILE).open("ab") as ledger:
        ledger.write(b"\xff" * 5000 + b'\n{"schema": 99}\n{"half')
    assert len(matched(runs)[0]) == 7


# ---------------------------------------------------------------- for people


def printed(result: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    monkeypatch.setenv("COLUMNS", "80")
    show_score(result)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in "".join(lines)
    return lines


def test_people_read_a_table(runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(score(runs), monkeypatch, capsys)
    cells = [line.split() for line in lines[:5]]
    assert cells[0] == ["strategy", "runs", "median", "90th", "pct", "held", "best", "memory"]
    assert [row[0] for row in cells[1:]] == ["ddp", "hogwild", "single", "all"]
    assert lines[1].split() == ["ddp", "3", "12", "%", "47", "%", "33", "%", "0", "of", "1", "5.0", "%"]
    assert lines[4].split()[-7:] == ["71", "%", "1", "of", "2", "5.0", "%"]
    text = " ".join(lines)
    assert "picked the fastest row in 1 of 2 comparisons, one within the noise of it in 2." in text
    assert "Ruled out by a forecast, but finished: 1 run." in text
    assert "-55 %  glyphs, ddp, 2 ranks: forecast 900, measured 2,000" in text


def test_long_names_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    options = {"servers": 2, "mode": "bounded", "staleness": 4}
    kept(
        tmp_path,
        forecast("balanced_data_parallel", 1e6),
        forecast("parameter_server:mode=bounded,servers=2,staleness=4"),
    )
    run("balanced_data_parallel", 1e4, comparison="x").save(tmp_path / "x" / "a")
    run("parameter_server", 1010.0, options=options, comparison="x").save(tmp_path / "x" / "b")
    lines = printed(score(tmp_path), monkeypatch, capsys)
    assert lines[1].startswith("balanced_data_parallel  ")
    assert "9,900 %" in lines[1]


def test_nothing_is_said_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert printed(score(tmp_path), monkeypatch, capsys)[0].startswith(
        "no forecasts are kept here; `manyhands plan TASK`"
    )
    kept(tmp_path, forecast())
    assert printed(score(tmp_path), monkeypatch, capsys)[0].startswith("1 forecast kept, but no finished run matches")


def test_forecasts_that_are_right_lie_level(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept(tmp_path, forecast(interval=None))
    run().save(tmp_path / "one")
    text = " ".join(printed(score(tmp_path), monkeypatch, capsys))
    assert "forecasts lie level with what was measured" in text
    assert "picked" not in text.split("memory forecast")[1]
