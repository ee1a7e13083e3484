"""Runs are found below a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from manyhands.errors import BadInput
from manyhands.record.exports import find_runs


def test_a_folder_that_is_not_there() -> None:
    with pytest.raises(BadInput, match="no folder nowhere; runs are kept in runs/ unless --run-dir said otherwise"):
        find_runs(Path("nowhere"))
