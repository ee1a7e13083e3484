"""Slices of parameters over servers: balanced by bytes, large tensors cut between rows.

parameters   |  a  |        b        | c |      d      |
2 servers    |        server 0       |     server 1    |      a server holds one stretch of rows of each tensor
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .gradient_slots import rows_of, take_rows


class Slice(NamedTuple):
    """Rows `start` to `stop` of the parameter `name`."""

    name: str
    start: int
    stop: int

    def of(self, tensor: Tensor) -> Tensor:
        return take_rows(tensor, self.start, self.stop)


def cut(parameters: Sequence[tuple[str, Tensor]], servers: int, split: bool) -> list[list[Slice]]:
    """The slices of each server; a server may get none where there are more servers than pieces."""
    return _cut_rows(parameters, servers) if split else _whole_tensors(parameters, servers)


def _cut_rows(parameters: Sequence[tuple[str, Tensor]], servers: int) -> list[list[Slice]]:
    """Lay all rows in one line and cut it into equal lengths, at the row next to each cut."""
    total = sum(_bytes(tensor) for _, tensor in parameters)
    found: list[list[Slice]] = [[] for _ in range(servers)]
    before = 0
    for name, tensor in parameters:
        rows, size = rows_of(tensor), _bytes(tensor)
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
    for name, tensor in sorted(parameters, key=lambda item: -_bytes(item[1])):
        owner[name] = held.index(min(held))
        held[owner[name]] += _bytes(tensor)
    return [
        [Slice(name, 0, rows_of(tensor)) for name, tensor in parameters if owner[name] == server]
        for server in range(servers)
    ]


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def slice_state(state: Mapping[str, Any], slices: Sequence[Slice], shapes: Mapping[str, torch.Size]) -> dict[str, Any]:
    """A whole optimizer's state, cut down to one server's slices."""
    own = {item.name: item for item in slices}
    optimizer = state["optimizer"]
    cut_down = {
        name: {key: own[name].of(value) if _like(value, shapes[name]) else value for key, value in values.items()}
        for name, values in optimizer["state"].items()
        if name in own
    }
    return {**state, "optimizer": {"state": cut_down, "groups": optimizer["groups"]}}


def join_states(
    states: Sequence[Mapping[str, Any]], slices: Sequence[Sequence[Slice]], shapes: Mapping[str, torch.Size]
) -> dict[str, Any]:
    """The whole optimizer's state from the servers' parts, in the order of their rows."""
    parts: dict[str, dict[str, list[Any]]] = {}
    for state, own in zip(states, slices, strict=True):
        lengths = {item.name: item.stop - item.start for item in own}
        for name, values in state["optimizer"]["state"].items():
            shape = torch.Size((lengths[name], *shapes[name][1:])) if shapes[name] else shapes[name]
            for key, value in values.items():
                parts.setdefault(name, {}).setdefault(key, []).append(value if _like(value, shape) else (value,))
    joined = {
        name: {
            key: torch.cat(found) if isinstance(found[0], Tensor) and shapes[name] else _first(found)
            for key, found in values.items()
        }
        for name, values in parts.items()
    }
    return {
        **states[0],
        "optimizer": {"state": joined, "groups": _join_groups([state["optimizer"]["groups"] for state in states])},
    }


def _first(found: list[Any]) -> Any:
    return found[0] if isinstance(found[0], Tensor) else found[0][0]


def _join_groups(every: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Servers make the same groups, each with the names it holds."""
    joined = [dict(group, names=list(group["names"])) for group in every[0]]
    for groups in every[1:]:
        for index, group in enumerate(groups):
            if index < len(joined):
                joined[index]["names"] += [name for name in group["names"] if name not in joined[index]["names"]]
            else:
                joined.append(dict(group, names=list(group["names"])))
    return joined


def _like(value: Any, shape: torch.Size) -> bool:
    return isinstance(value, Tensor) and value.shape == shape
