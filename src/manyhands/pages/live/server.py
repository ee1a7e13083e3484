"""serve(): the address, the token and the process. Ctrl-C ends it."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import BadInput

if TYPE_CHECKING:
    import uvicorn

USUAL_PORT = 8765
LOWER_PRIORITY = 10  # fits that train on this machine go first
CONNECTIONS = 64  # at once


class Server:
    """A folder of runs at an address of this machine. `run` serves until it is interrupted, or `stop` is called."""

    def __init__(self, folder: Path, host: str = "127.0.0.1", port: int | None = None):
        try:
            import uvicorn

            from .app import application
            from .guard import Guard, loopback
        except ImportError as problem:
            raise BadInput(
                f"manyhands serve needs a package that is not installed ({problem.name}); pip install 'manyhands[serve]'"
            ) from None
        if not loopback(host):
            raise BadInput(
                f"serve listens on this machine alone (host: {host}, not a loopback address); from another machine: "
                f"ssh -L {port or USUAL_PORT}:127.0.0.1:{port or USUAL_PORT} THIS_HOST"
            )
        if not folder.is_dir():
            raise BadInput(f"no folder {folder}; runs are kept in runs/ unless --run-dir said otherwise")
        token = secrets.token_urlsafe(24)
        self._socket = _listen(host, port)
        shown = f"[{host}]" if ":" in host else host
        self.address = f"http://{shown}:{self._socket.getsockname()[1]}/?token={token}"
        self._server: uvicorn.Server = uvicorn.Server(
            uvicorn.Config(
                Guard(application(folder), token),
                log_config=None,
                log_level="error",
                access_log=False,  # addresses hold the token
                server_header=False,
                lifespan="off",
                loop="asyncio",
                http="h11",
                ws="none",
                proxy_headers=False,
                limit_concurrency=CONNECTIONS,
                timeout_graceful_shutdown=2,
            )
        )

    def run(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()

    def stop(self) -> None:
        self._server.should_exit = True


def serve(folder: Path, host: str, port: int | None) -> None:
    """Serve from the command line until Ctrl-C."""
    server = Server(folder, host, port)
    os.nice(LOWER_PRIORITY)
    print("open this address in a browser; Ctrl-C ends the server", file=sys.stderr, flush=True)
    print(server.address, flush=True)
    with contextlib.suppress(KeyboardInterrupt):  # how people end it
        server.run()


def _listen(host: str, port: int | None) -> socket.socket:
    """A listening socket; without a wish the usual port or, if that is taken, a free one."""
    try:
        return _bound(host, USUAL_PORT if port is None else port)
    except OSError as problem:
        taken = problem.errno == errno.EADDRINUSE
        if taken and port is None:
            return _bound(host, 0)
        reason = "it is in use" if taken else problem.strerror
        raise BadInput(
            f"cannot listen on {host}, port {port}: {reason}; choose another --port, or 0 for a free one"
        ) from None


def _bound(host: str, port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(CONNECTIONS)
    except OSError:
        listening.close()
        raise
    return listening
