"""Where ranks can be forked at all."""

from __future__ import annotations

import sys

import pytest

from manyhands.errors import BadInput
from manyhands.world.launch.fork_server import check_system


def test_other_systems_are_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(BadInput, match=r"runs on Linux and macOS \(found win32\); use a Linux machine or WSL"):
        check_system()
