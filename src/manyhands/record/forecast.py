"""A forecast: what a strategy would do with a task on so many ranks, as data, before it is run."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Forecast:
    """One strategy with so many ranks. Figures are None where it is not feasible, or where nobody asked for them.

    Every interval is meant to hold in 80 of 100 cases.
    """

    strategy: str  # with its options, as a run's label
    ranks: int
    feasible: bool = True
    reason: str | None = None  # why it is not feasible
    samples_per_second: float | None = None
    interval: tuple[float, float] | None = None  # of samples_per_second
    step_ms: float | None = None
    phases_ms: dict[str, float] = field(default_factory=dict)  # mean per step over ranks; they sum to step_ms
    memory_bytes: int | None = None  # of the rank that needs most
    bytes_per_step: dict[str, float] = field(
        default_factory=dict
    )  # by link: "memory" within a host, "network" between hosts
    threads: int | None = None  # of each rank
    hosts: int = 1
    batch_size: int | None = None
    seconds: float | None = None  # to finish the task
    seconds_interval: tuple[float, float] | None = None
    cost: float | None = None  # to finish the task, where a price per hour was given
    basis: str | None = None  # "measured" in a short trial of this very row, or "simulated"
    step_ms_interval: tuple[float, float] | None = None
    memory_interval: tuple[float, float] | None = None
    cost_interval: tuple[float, float] | None = None

    def record(self) -> dict[str, Any]:
        """As plain JSON-able data."""
        found = dataclasses.asdict(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}
