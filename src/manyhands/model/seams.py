"""Where a program may be cut: between operations that compute, where nothing that is written into lies on both sides."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from torch import nn

from .program import Program, Wire


@dataclass(frozen=True)
class Seam:
    """A place to cut: before this operation, with so many bytes crossing."""

    position: int
    bytes: int


def find_seams(program: Program, model: nn.Module) -> list[Seam]:
    """The places to cut, at most one between any two operations that compute something."""
    computing = [index for index, computes in enumerate(program.computes) if computes]
    closed = _closed(program, model)
    seams = []
    for before, after in pairwise(computing):
        found = []
        for position in range(before + 1, after + 1):
            wires = [Wire(value, program.forms[value]) for value in program.alive(position)]
            if position not in closed and not any(wire.stuck for wire in wires):
                found.append(Seam(position, sum(form.bytes for wire in wires for form in wire.tensors)))
        if found:
            seams.append(min(found, key=lambda seam: (seam.bytes, seam.position)))
    return seams


def _closed(program: Program, model: nn.Module) -> set[int]:
    """Where no cut may go: between a value's making and a write into it, between two users of a buffer they write."""
    closed: set[int] = set()
    for value, operation in program.mutations:
        closed.update(range(max(value - program.first, -1) + 1, operation + 1))
    used = [operation.uses(model) for operation in program.operations] if program.written else []
    for name in program.written:
        users = [index for index, names in enumerate(used) if name in names]
        if users:
            closed.update(range(users[0] + 1, users[-1] + 1))
    return closed
