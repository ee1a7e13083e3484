"""What a job's steps cost on this machine, as strategies ask for it in their timelines (strategies/timeline.py)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from ...model import Cut
from ...record.run import PHASES
from ...strategies.timeline import Stage
from .collectives import all_gather, hierarchical_all_reduce
from .link import Link
from .transport import Transport, between


@dataclass(frozen=True)
class MeasuredCosts:
    """The costs of one row: its job, its cut, and where its processes are."""

    batch_size: int
    trained_bytes: float
    weight_bytes: float
    parts: Mapping[float, Mapping[str, float]]  # samples -> seconds of each phase of `single`'s step with so many
    transport: Transport
    copy_per_byte: float
    idle_load: float = 0.0  # share of `load` in which a rank only waits
    stages: tuple[Stage, ...] = ()
    units: int = 1
    hosts: Sequence[int] = field(default_factory=tuple)  # where each process is
    link: Link | None = None  # between hosts
    # bytes by link, added up as timelines ask for costs
    handed_over: dict[str, float] = field(default_factory=lambda: defaultdict(float), compare=False)

    def part(self, samples: float) -> dict[str, float]:
        found = {
            phase: between({size: part.get(phase, 0.0) for size, part in self.parts.items()}, samples)
            for phase in PHASES
        }
        return {**found, "load": (1 - self.idle_load) * found["load"], "idle": self.idle_load * found["load"]}

    def overhead(self) -> float:
        sizes = sorted(self.parts)
        passes = {size: self.parts[size]["forward"] + self.parts[size]["backward"] for size in sizes}
        if len(sizes) < 2:
            return 0.5 * passes[sizes[0]]
        small, next_one = sizes[:2]
        slope = (passes[next_one] - passes[small]) / (next_one - small)
        return min(max(passes[small] - slope * small, 0.0), passes[small])

    def copy(self, size: float) -> float:
        return size * self.copy_per_byte

    def all_reduce(self, size: float, members: int) -> float:
        """Asked by each member, and each hands over all of its sum."""
        self.handed_over["memory"] += size
        inside = self.transport.seconds("all_reduce", size, self._on_a_host(members))
        if self.link is None:
            return inside
        self.handed_over["network"] += 2 * (self._places - 1) * size / members
        return hierarchical_all_reduce(self._places, size, self.link, inside)

    def gather(self, size: float, members: int) -> float:
        """Asked by each member, and each hands over its part of the whole."""
        self.handed_over["memory"] += size / members
        inside = self.transport.seconds("gather", size, self._on_a_host(members))
        if self.link is None:
            return inside
        self.handed_over["network"] += (self._places - 1) * size / members
        return inside + all_gather(self._places, size, self.link)

    def message(self, size: float, sender: int, receiver: int) -> float:
        if self.link is not None and self.hosts[sender] != self.hosts[receiver]:
            self.handed_over["network"] += size
            return self.link.seconds + size / self.link.bytes_per_second
        self.handed_over["memory"] += size
        return self.transport.seconds("message", size, 2)

    def handling(self, size: float) -> float:
        """Half of what a message takes within a host: it is done when the receiver has it."""
        return self.transport.seconds("message", size, 2) / 2

    @property
    def _places(self) -> int:
        return len(set(self.hosts)) or 1

    def _on_a_host(self, members: int) -> int:
        return max(1, members // self._places)


def stages_of(prepared: Any) -> tuple[Stage, ...]:
    """Of the cut that a strategy has prepared, if it has."""
    found = prepared[0] if isinstance(prepared, tuple) and prepared else prepared
    if not isinstance(found, Cut):
        return ()
    forward = sum(layer.forward_seconds for layer in found.layers) or 1.0
    backward = sum(layer.backward_seconds for layer in found.layers) or 1.0
    parameters = sum(layer.parameter_bytes for layer in found.layers) or 1
    stages = []
    for begin, end in pairwise(found.bounds):
        layers = found.layers[begin:end]
        stages.append(
            Stage(
                sum(layer.forward_seconds for layer in layers) / forward,
                sum(layer.backward_seconds for layer in layers) / backward,
                sum(layer.parameter_bytes for layer in layers) / parameters,
                layers[-1].activation_bytes / found.samples if end < len(found.layers) else 0.0,
            )
        )
    return tuple(stages)


def units_of(prepared: Any) -> int:
    """Of a model whose parameters are gathered block by block: those named, and the rest as one."""
    return 1 + len(prepared) if isinstance(prepared, list) else 1
