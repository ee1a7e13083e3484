"""An agent's end of a line over TCP. The caller's is the one it has to its own ranks: it waits for nobody."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import socket
import struct
import threading
from pathlib import Path
from typing import Any

from ..launch.messages import LENGTH, framed
from ..shared_memory import anonymous_file
from .handshake import greet_caller

CONNECT_SECONDS = 10.0
SILENT_SECONDS = 30  # without a word of the caller, who speaks every second, it is gone or cannot be reached
_PIECE = 1 << 22


class TcpLine:
    """A line to the caller, found through the folder that both see."""

    def __init__(self, folder: Path):
        where = json.loads((folder / "caller.json").read_text())
        key = (folder / "key").read_bytes()
        self._folder, self._sending = folder, threading.Lock()
        self._socket = _first_that_answers(where["addresses"], where["port"], key)
        # for reading alone: the caller may be long in a callback and take nothing meanwhile
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", SILENT_SECONDS, 0))

    def send(self, kind: str, content: Any = None) -> None:
        with self._sending:
            self._socket.sendall(framed((kind, content)))

    def receive(self) -> tuple[str, Any]:
        size = int.from_bytes(self._exactly(LENGTH), "little")
        message: tuple[str, Any] = pickle.loads(self._exactly(size))  # noqa: S301 (the caller has shown that it has the key)
        return message

    def open(self, carried: tuple[str, str]) -> int:
        """Copied into memory: the ranks of this host then share one copy, and nobody changes it under them."""
        name, digest = carried
        data = (self._folder / name).read_bytes()
        if hashlib.sha256(data).hexdigest() != digest:
            raise OSError(f"{self._folder / name} is not what the caller has written (another SHA-256)")
        file = anonymous_file(0)
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(file, rest) :]
        return file

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # whoever is sending gives up

    def _exactly(self, size: int) -> bytearray:
        data = bytearray(size)
        rest = memoryview(data)
        while rest:
            count = self._socket.recv_into(rest, min(len(rest), _PIECE))
            if not count:
                raise EOFError
            rest = rest[count:]
        return data


def _first_that_answers(addresses: list[str], port: int, key: bytes) -> socket.socket:
    problems = []
    for address in addresses:
        try:
            line = socket.create_connection((address, port), timeout=CONNECT_SECONDS)
            greet_caller(line, key)
        except OSError as problem:
            problems.append(f"{address}: {problem}")
            continue
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return line
    raise ConnectionError(f"the caller cannot be reached at port {port} ({'; '.join(problems)})")
