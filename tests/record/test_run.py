"""The record as text, and read again."""

from __future__ import annotations

import json
from pathlib import Path

from manyhands.record.exports import find_runs
from manyhands.record.run import RECORD_FILE, TIMELINE_FILE, Run
from tests.conftest import Command

MARK = {"rank": 0, "step": 1, "phase": "forward", "start_ms": 0.0, "end_ms": 1.0}


def test_losses_stand_in_one_line_however_many() -> None:
    """A line each made a million of them 3.5 s of writing between the last step and the prompt."""
    few, many = Run("t", "single", losses=[1.0]), Run("t", "single", losses=[0.5, None, float("nan")] * 100)
    assert few.to_json().count("\n") == many.to_json().count("\n")
    assert json.loads(many.to_json()) == many.record()
    assert many.record()["losses"] == [0.5, None, None] * 100


def test_no_other_field_takes_the_place_of_the_losses() -> None:
    run = Run('"losses": []', "single", options={"losses": []}, losses=[2.0])
    assert json.loads(run.to_json()) == run.record()


def test_a_list_of_runs_reads_neither_losses_nor_timelines(tmp_path: Path, command: Command) -> None:
    """Of 1,000 runs with 1,000 losses each, a list of six columns parsed every one."""
    run = Run("t", "single", losses=[1.0, 2.0])
    run.timeline = [MARK]
    folder = run.save(tmp_path / "runs" / "one")
    assert find_runs(tmp_path)[0].losses == [1.0, 2.0]
    assert find_runs(tmp_path)[0].timeline == [MARK]
    [light] = find_runs(tmp_path, series=False)
    assert (light.losses, light.timeline) == ([], [])
    text = (folder / RECORD_FILE).read_text()
    (folder / RECORD_FILE).write_text(text.replace("[1.0, 2.0]", "[unreadable, as nobody reads it]"))
    (folder / TIMELINE_FILE).unlink()
    (folder / TIMELINE_FILE).mkdir()
    code, out, err = command("runs")
    assert (code, err) == (0, "")
    assert "one" in out
