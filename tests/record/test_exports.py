"""Runs are found below a folder, and logs are asked for by name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from manyhands.errors import BadInput
from manyhands.record.exports import check_logs, find_runs


def test_a_folder_that_is_not_there() -> None:
    with pytest.raises(BadInput, match="no folder nowhere; runs are kept in runs/ unless --run-dir said otherwise"):
        find_runs(Path("nowhere"))


def test_logs_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_logs("csv, ") == ["csv"]
    with pytest.raises(BadInput, match='no log named "xml"; there are: csv, tensorboard'):
        check_logs("csv,xml")
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(BadInput, match="--log tensorboard needs the package tensorboard; pip install tensorboard"):
        check_logs("tensorboard")
