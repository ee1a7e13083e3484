"""Messages between ranks and servers: gradients one way, weights the other.

    rank                                            server
      send(PUSH, gradients)        ------>            take()          whole gradients, or rows of sparse ones
      receive(PUSH)                <------            reply()         the server's slice of the weights
      send(PASS)                   ------>            take()          a step without an update
      send(END)                    ------>            take()          nothing more until all have met (mode=async)

A rank has at most one message to each server under way. `server_memory` carries them within a host, `server_network`
between hosts.
"""

from __future__ import annotations

import struct
from time import monotonic_ns
from typing import NamedTuple

from torch import Tensor

from ...record.clock import Clock

PASS, PUSH, END = 0, 1, 2
UPDATES, RATE = 0, 1  # what a server tells all ranks
Gradients = list[Tensor | None]


class Message(NamedTuple):
    sender: int
    kind: int
    seen: int  # updates of this server in the weights behind the gradient
    gradients: Gradients
    units: float = 0.0  # behind the gradients, as a part of the update's samples, where a task counts units


def as_bits(number: float) -> int:
    """A number of 64 bits among whole ones."""
    found: int = struct.unpack("q", struct.pack("d", number))[0]
    return found


def from_bits(bits: int) -> float:
    found: float = struct.unpack("d", struct.pack("q", bits))[0]
    return found


def book_update(clock: Clock, took: int) -> None:
    """A rank has its answer: the end of its wait, as long as the server was at work on the update, was no waiting."""
    if took:
        clock.since("update", monotonic_ns() - took)
