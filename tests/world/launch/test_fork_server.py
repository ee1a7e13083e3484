"""The server that ranks are forked from: where it can be, and what it starts with."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from manyhands.errors import BadInput
from manyhands.world.launch import fork_server
from manyhands.world.launch.fork_server import SPIN, check_system, shut_down, warm_up


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


def _started() -> dict[str, str]:
    """The environment of a server that was started just now."""
    warm_up()
    assert fork_server._server is not None
    content = Path(f"/proc/{fork_server._server.process.pid}/environ").read_bytes()
    return dict(line.decode().split("=", 1) for line in content.split(b"\0") if line)


@pytest.mark.skipif(sys.platform != "linux", reason="reads another process's environment in /proc")
@pytest.mark.parametrize("said", ["", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"])
def test_threads_that_wait_soon_sleep(nobody: None, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    """Beside another process a step with two threads took 30 times as long: the threads spun while they waited."""
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    if said:
        monkeypatch.setenv(said, "7")
    there = _started()
    expected = {"": str(SPIN), "OMP_WAIT_POLICY": None, "GOMP_SPINCOUNT": "7"}[said]
    assert there.get("GOMP_SPINCOUNT") == expected
    assert "GOMP_SPINCOUNT" not in os.environ or said == "GOMP_SPINCOUNT"  # the caller's own stays as it was


def test_a_server_that_nobody_used_is_not_waited_for(nobody: None) -> None:
    """A command that ended with bad input waited two seconds for imports that nobody needed."""
    warm_up()
    server = fork_server._server
    assert server is not None
    shut_down()
    assert server.process.returncode == -9
