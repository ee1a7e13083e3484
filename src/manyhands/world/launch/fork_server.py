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
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...errors import BadInput
from .fork_server_process import DESCRIPTORS


class _Server:
    def __init__(self) -> None:
        self.requests, theirs = socket.socketpair()
        source = str(Path(__file__).resolve().parents[2])
        code = f"import sys; sys.path.append({source!r}); from manyhands.world.launch.fork_server_process import live; live({theirs.fileno()})"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=2
        )
        theirs.close()
        self.owner = os.getpid()
        self.environment = _of_the_gpu()  # as its processes have it
        self.used = False  # whether it was ever asked for ranks

    def alive(self) -> bool:
        return self.owner == os.getpid() and self.process.poll() is None


# One server for all launches of a program, because its import of torch takes a second. Launches of several threads
# share it: it is started, replaced and written to under the lock alone.
_server: _Server | None = None
_lock = threading.Lock()


def _forked() -> None:
    global _lock
    _lock = threading.Lock()  # the thread that held it may not exist in this child


os.register_at_fork(after_in_child=_forked)


@atexit.register
def shut_down() -> None:
    """The server ends when its caller hangs up, and with it what it has started."""
    if _server is not None and _server.owner == os.getpid():
        if not _server.used:
            _server.process.kill()  # it may be in the middle of its imports, and nobody waits for them
        _server.requests.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            _server.process.wait(timeout=2)


def check_system() -> None:
    if sys.platform not in ("linux", "darwin"):
        raise BadInput(f"manyhands runs on Linux and macOS (found {sys.platform}); use a Linux machine or WSL")


def warm_up(preload: Sequence[str] = (), wait: str | None = None) -> None:
    """Have the server import torch and these modules now, beside the caller's own work.

    With `wait` it also keeps a rank in waiting on that device, for a launch of one rank (rank_in_waiting.py).
    """
    check_system()
    _request(preload, [], wait)


def ask_for_ranks(named: Mapping[str, int], links: Sequence[int], preload: Sequence[str]) -> None:
    """Let the server fork the ranks of a launch, one for each link; it has a copy of the descriptors when this returns."""
    _request(preload, [*(named[name] for name in DESCRIPTORS), *links])


def _request(preload: Sequence[str], fds: Sequence[int], wait: str | None = None) -> None:
    global _server
    with _lock:
        if _server is None or not _server.alive():
            _server = _Server()
        afresh = _server.environment != _of_the_gpu()  # a rank that has begun its GPU will not look at it again
        message = json.dumps({"import": list(preload), "wait": wait, "afresh": afresh}).encode() + b"\n"
        if fds:
            _server.used = True
            socket.send_fds(_server.requests, [message], fds)
        else:
            _server.requests.sendall(message)


def _of_the_gpu() -> dict[str, str]:
    """The variables that torch and its libraries read as they begin."""
    return {name: value for name, value in os.environ.items() if name.startswith(("CU", "NVIDIA", "PYTORCH", "TORCH"))}
