"""Slices of parameters over servers: balanced by bytes, large tensors cut between rows.

parameters   |  a  |        b        | c |      d      |
2 servers    |        server 0       |     server 1    |      a server holds one stretch of rows of each tensor
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor


def rows_of(tensor: Tensor) -> int:
    return int(tensor.shape[0]) if tensor.dim() else 1


class Slice(NamedTuple):
    """Rows `start` to `stop` of the parameter `name`; a tensor without dimensions is one row."""

    name: str
    start: int
    stop: int

    def of(self, tensor: Tensor) -> Tensor:
        return tensor[self.start : self.stop] if tensor.dim() else tensor


def whole(name: str, tensor: Tensor) -> Slice:
    return Slice(name, 0, rows_of(tensor))


def assign_slices(parameters: Sequence[tuple[str, Tensor]], servers: int, split: bool) -> list[list[Slice]]:
    """The slices of each server; a server may get none where there are more servers than pieces."""
    return _cut_rows(parameters, servers) if split else _whole_tensors(parameters, servers)


def _cut_rows(parameters: Sequence[tuple[str, Tensor]], servers: int) -> list[list[Slice]]:
    """Lay all rows in one line and cut it into equal lengths, at the row next to each cut."""
    total = sum(tensor.nbytes for _, tensor in parameters)
    found: list[list[Slice]] = [[] for _ in range(servers)]
    before = 0
    for name, tensor in parameters:
        rows, size = rows_of(tensor), tensor.nbytes
        edges = [
            min(max(round((total * server / servers - before) / max(size, 1) * rows), 0), rows)
            for server in range(servers + 1)
        ]
        for server in range(servers):
            if edges[server] < edges[server + 1]:
                found[server].append(Slice(name, edges[server], edges[server + 1]))
        before += size
    return found


def _whole_tensors(parameters: Sequence[tuple[str, Tensor]], servers: int) -> list[list[Slice]]:
    """The largest first, each to the server that holds least so far; then back in the model's order."""
    held = [0] * servers
    owner: dict[str, int] = {}
    for name, tensor in sorted(parameters, key=lambda item: -item[1].nbytes):
        owner[name] = held.index(min(held))
        held[owner[name]] += tensor.nbytes
    return [[whole(name, tensor) for name, tensor in parameters if owner[name] == server] for server in range(servers)]
