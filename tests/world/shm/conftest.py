"""Ranks for the tests of the shared-memory backend."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.world.shm.crew import Crew

_shared = Crew()  # its processes are daemons: they end with the tests


@pytest.fixture
def crew() -> Crew:
    """Ranks that every test leaves in order."""
    return _shared


@pytest.fixture
def doomed() -> Iterator[Crew]:
    """Ranks that a test may kill."""
    crew = Crew()
    yield crew
    crew.close()
