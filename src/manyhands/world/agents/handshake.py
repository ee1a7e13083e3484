"""Both ends of a line prove that they know the key before either listens to the other: what follows is unpickled.

    caller -> agent    a random number                     agent -> caller    another one, and the first sealed with the key
    caller -> agent    the other one, sealed

The key lies in a folder that only its user can read. What is said afterwards is not encrypted, as nothing that
torch.distributed says is: the network between the hosts must be trusted.
"""

from __future__ import annotations

import hmac
import os
import socket

SIZE = 32  # bytes of a key, of a random number and of a seal
SECONDS = 5.0  # for the whole of it


class Stranger(ConnectionError):
    """The other end does not know the key."""


def greet_agent(line: socket.socket, key: bytes) -> None:
    """The caller's part; raises Stranger, or OSError where the other end says nothing."""
    line.settimeout(SECONDS)
    number = os.urandom(SIZE)
    line.sendall(number)
    answer = _exactly(line, 2 * SIZE)
    if not hmac.compare_digest(answer[SIZE:], _seal(key, b"agent", number)):
        raise Stranger("it does not know the key")
    line.sendall(_seal(key, b"caller", answer[:SIZE]))
    line.settimeout(None)


def greet_caller(line: socket.socket, key: bytes) -> None:
    """The agent's part."""
    line.settimeout(SECONDS)
    number = os.urandom(SIZE)
    line.sendall(number + _seal(key, b"agent", _exactly(line, SIZE)))
    if not hmac.compare_digest(_exactly(line, SIZE), _seal(key, b"caller", number)):
        raise Stranger("it does not know the key")
    line.settimeout(None)


def _seal(key: bytes, who: bytes, number: bytes) -> bytes:
    return hmac.digest(key, who + number, "sha256")


def _exactly(line: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = line.recv(size - len(data))
        if not piece:
            raise Stranger("it has hung up")
        data += piece
    return data
