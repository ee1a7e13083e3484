"""The forms of a record's fields that are objects or lists of them, as far as anything reads them by name.

A key that is missing is fine (another version wrote it), one that holds something else is not.
"""

from __future__ import annotations

from typing import Any, TypedDict

Phases = dict[str, float]


class Times(TypedDict):
    median: float
    p10: float
    p90: float


class Test(TypedDict):
    samples: int
    loss: float | None
    accuracy: float | None
    per_class: dict[str, float | None]


class Staleness(TypedDict):
    mean: float
    max: int
    histogram: list[int]


class SlowRank(TypedDict):
    rank: int
    phase: str
    behind_ms: float


class Epoch(TypedDict):
    epoch: int
    loss: float | None
    seconds: float
    samples: int
    learning_rate: float | None
    test_accuracy: float | None
    test_loss: float | None


class PerRank(TypedDict):
    rank: int
    device: str | None
    host: str | None
    phases_ms: Phases | None
    peak_memory_bytes: float | None
    samples: int | None


class Core(TypedDict):
    core: int
    mean_percent: float


class Gpu(TypedDict):
    gpu: int
    mean_percent: float
    memory_bytes: float


class Usage(TypedDict):
    cores: list[Core]
    gpus: list[Gpu]


class Span(TypedDict):
    rank: int
    step: int
    phase: str
    start_ms: float
    end_ms: float


FORMS: dict[str, Any] = {
    "environment": dict[str, str | float | None],
    "step_ms": Times | None,
    "test": Test | None,
    "staleness": Staleness | None,
    "slow_rank": SlowRank | None,
    "epochs": list[Epoch],
    "per_rank": list[PerRank],
    "usage": Usage | None,
}
TIMELINE = list[Span]
