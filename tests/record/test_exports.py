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
