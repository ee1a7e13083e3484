"""The caller's end of the fork server (see fork_server_process.py): one for each program, started by its first launch."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from ...errors import BadInput


class _Server:
    """The caller's end of the fork server; started by the first launch of a program."""

    def __init__(self, preload: Sequence[str]) -> None:
        here, there = socket.socketpair()
        source = str(Path(__file__).resolve().parents[2])
        code = f"import sys; sys.path.append({source!r}); from manyhands.world.launch.fork_server_process import live; live({there.fileno()}, {list(preload)})"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], pass_fds=[there.fileno()], stdin=subprocess.DEVNULL, stdout=2
        )
        there.close()
        self.requests = here
        self.owner = os.getpid()

    def alive(self) -> bool:
        return self.owner == os.getpid() and self.process.poll() is None

    def ask(self, fds: list[int], preload: Sequence[str]) -> None:
        socket.send_fds(self.requests, [json.dumps(list(preload)).encode()], fds)


_server: _Server | None = None
_server_lock = threading.Lock()


def _forked() -> None:
    global _server_lock
    _server_lock = threading.Lock()  # the thread that held it may not exist in this child


os.register_at_fork(after_in_child=_forked)


@atexit.register
def _shut_down() -> None:
    """The server ends when its caller hangs up."""
    if _server is not None and _server.owner == os.getpid():
        _server.requests.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            _server.process.wait(timeout=2)


def warm_up(preload: Sequence[str] = ()) -> None:
    """Start the fork server now: it imports torch, and the modules named, beside the caller's own work."""
    global _server
    if sys.platform not in ("linux", "darwin"):
        raise BadInput(f"manyhands runs on Linux and macOS (found {sys.platform}); use a Linux machine or WSL")
    with _server_lock:
        if _server is None or not _server.alive():
            _server = _Server(preload)


def ask_for_ranks(fds: list[int], preload: Sequence[str]) -> None:
    """Let the server fork the ranks of a launch; `warm_up` comes first."""
    assert _server is not None
    _server.ask(fds, preload)
