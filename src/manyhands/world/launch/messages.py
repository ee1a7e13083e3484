"""Lines between the caller and its ranks: whole messages over socket pairs, pickled (both ends are one program).

A rank may wait for its caller, which is always there: the kernel ends ranks whose caller is gone. The caller waits for
no rank: one that was stopped in the middle of a message, or reads no answer, must not keep it from watching the others.
"""

from __future__ import annotations

import pickle
import socket
import threading
from typing import Any

import cloudpickle

LENGTH = 8  # bytes before each message
_PIECE = 1 << 20


def framed(content: Any) -> bytes:
    data = cloudpickle.dumps(content, protocol=5)
    return len(data).to_bytes(LENGTH, "little") + data


class ToCaller:
    """A rank's end."""

    def __init__(self, descriptor: int):
        self._socket = socket.socket(fileno=descriptor)
        self._lock = threading.Lock()

    def tell(self, kind: str, content: Any) -> None:
        """Say something and go on."""
        with self._lock:
            self._socket.sendall(framed((kind, content)))

    def ask(self, kind: str, content: Any) -> Any:
        """Say something and wait for the answer (a callback of the user's runs in the caller's process)."""
        with self._lock:
            self._socket.sendall(framed(("ask", (kind, content))))
            return pickle.loads(self._exactly(int.from_bytes(self._exactly(LENGTH), "little")))  # noqa: S301 (our caller)

    def _exactly(self, size: int) -> bytearray:
        data = bytearray(size)
        rest = memoryview(data)
        while rest:
            count = self._socket.recv_into(rest)
            if not count:
                raise ConnectionError("the caller has hung up")
            rest = rest[count:]
        return data

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()


class ToRank:
    """The caller's end."""

    def __init__(self, end: socket.socket):
        end.setblocking(False)
        self._socket = end
        self._received = bytearray()
        self._unsent = bytearray()

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def receive(self) -> list[tuple[str, Any]]:
        """The messages that are complete by now; EOFError once the rank has gone and all it said was given out."""
        try:
            piece = self._socket.recv(_PIECE)
        except BlockingIOError:
            return []
        except OSError:
            piece = b""
        if not piece:
            raise EOFError
        self._received += piece
        messages = []
        while (message := self._next()) is not None:
            messages.append(message)
        return messages

    def _next(self) -> tuple[str, Any] | None:
        if len(self._received) < LENGTH:
            return None
        end = LENGTH + int.from_bytes(self._received[:LENGTH], "little")
        if len(self._received) < end:
            return None
        with memoryview(self._received) as whole:
            message: tuple[str, Any] = pickle.loads(whole[LENGTH:end])  # noqa: S301 (from our own rank)
        del self._received[:end]
        return message

    def send(self, content: Any) -> None:
        """Hand over an answer; what the rank does not take now goes with a later `flush`."""
        self._unsent += framed(content)
        self.flush()

    def flush(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            return
        except OSError:
            self._unsent.clear()  # it has gone; reading will tell

    def close(self) -> None:
        self._socket.close()
