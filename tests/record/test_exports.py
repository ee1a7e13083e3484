"""Runs are found below a folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from manyhands.errors import BadInput
from manyhands.record.exports import find_runs
from manyhands.record.run import RECORD_FILE, Run
from tests.conftest import Command


def test_a_folder_that_is_not_there() -> None:
    with pytest.raises(BadInput, match="no folder nowhere; runs are kept in runs/ unless --run-dir said otherwise"):
        find_runs(Path("nowhere"))


def test_what_runs_are_asked_for_must_exist(command: Command, tmp_path: Path) -> None:
    """`--status finished` and `--strategy dpp` found nothing, as if there were no such runs; short names did too."""
    Run("glyphs", "parameter_server").save(tmp_path / "runs" / "served")
    Run("train.py", "script").save(tmp_path / "runs" / "scripted")
    assert "served" in command("runs", "--strategy", "ps")[1]
    assert "scripted" in command("runs", "--strategy", "script")[1]
    assert command("runs", "--strategy", "dpp")[2] == 'manyhands: no strategy named "dpp"; did you mean "ddp"?\n'
    code, out, err = command("runs", "--status", "failled")
    assert (code, out, err) == (2, "", 'manyhands: no status named "failled"; did you mean "failed"?\n')


def test_records_that_cannot_be_read_are_counted_with_a_reason(command: Command, tmp_path: Path) -> None:
    """A run of a newer version seemed never to have been made."""
    Run("glyphs", "ddp").save(tmp_path / "runs" / "fine")
    newer = {**Run("glyphs", "ddp").record(), "schema": 99}
    for name, text in (("newer", json.dumps(newer)), ("torn", "{")):
        (tmp_path / "runs" / name).mkdir()
        (tmp_path / "runs" / name / RECORD_FILE).write_text(text)
    code, out, err = command("runs")
    assert code == 0
    assert "fine" in out
    assert "newer" not in out
    assert err.startswith("manyhands: 2 records left out: runs/newer/run.json was written by a newer manyhands")
    assert len(json.loads(command("runs", "--json")[1])["runs"]) == 1
