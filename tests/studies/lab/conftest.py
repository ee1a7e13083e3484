"""Fits that only write down that they were asked for."""

import pytest

from .tiny import Fits


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> Fits:
    return Fits(monkeypatch)
