"""Data for the tasks' tests: the real files where MANYHANDS_DATA points at them, never a download."""

import os
from pathlib import Path

import pytest

from manyhands.data import files


@pytest.fixture
def no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without the files and without a network."""

    def absent(*_: object) -> None:
        raise files.DataNotFound("text: not found")

    monkeypatch.setattr(files, "text", absent)


@pytest.fixture
def real_data() -> Path:
    folder = os.environ.get("MANYHANDS_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("MANYHANDS_DATA points at no folder")
    return Path(folder)
