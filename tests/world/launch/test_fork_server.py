"""The server that ranks are forked from: where it can be, and what it starts with."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from manyhands.errors import BadInput
from manyhands.world.launch import fork_server
from manyhands.world.launch.fork_server import check_system, shut_down, warm_up


def test_other_systems_are_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(BadInput, match=r"runs on Linux and macOS \(found win32\); use a Linux machine or WSL"):
        check_system()


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No server yet, whatever earlier tests have started; the one of this test is gone after it."""
    monkeypatch.setattr(fork_server, "_server", None)
    yield
    shut_down()


def test_a_server_that_nobody_used_is_not_waited_for(nobody: None) -> None:
    """A command that ended with bad input waited two seconds for imports that nobody needed."""
    warm_up()
    server = fork_server._server
    assert server is not None
    shut_down()
    assert server.process.returncode == -9
