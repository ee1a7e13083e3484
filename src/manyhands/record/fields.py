"""The forms of a record's fields that are objects or lists of them, as far as anything reads them by name.

A key that is missing is fine (another version wrote it), one that holds something else is not.
"""

from __future__ import annotations

from typing import Any

from .untrusted import LARGEST

COUNT = range(1, LARGEST)  # others divide by it
TEST = {"samples": int, "loss": float | None, "accuracy": float | None, "per_class": dict[str, float | None]}
STEP_MS = ({"median": float, "p10": float, "p90": float}, None)
# {key: form} is an object, [form] a list, (form, form) a choice, a range a whole number within it.
FORMS: dict[str, Any] = {
    "ranks": COUNT,
    "threads": (COUNT, None),
    "batch_size": (COUNT, None),
    "batch_per_rank": (COUNT, None),
    "accumulate": (COUNT, None),
    "environment": dict[str, str | float | None],
    "step_ms": STEP_MS,
    "whole_fit": (
        {"samples_per_second": float | None, "step_ms": STEP_MS, "phases_ms": dict[str, float | None] | None},
        None,
    ),
    "test": (TEST, None),
    "ema": ({"decay": float, "test": (TEST, None), "weights_sha256": str}, None),
    "staleness": ({"mean": float, "max": int, "histogram": list[int]}, None),
    "slow_rank": ({"rank": int | None, "server": int | None, "phase": str, "behind_ms": float}, None),
    "forecast": (
        {
            "samples_per_second": float,
            "interval": list[float] | None,
            "memory_bytes": float | None,
            "made": str,
            "basis": str | None,
        },
        None,
    ),
    "epochs": [
        {
            "epoch": int,
            "loss": float | None,
            "seconds": float,
            "samples": int,
            "learning_rate": float | None,
            "test_accuracy": float | None,
            "test_loss": float | None,
            "ema_test_accuracy": float | None,
            "ema_test_loss": float | None,
        }
    ],
    "per_rank": [
        {
            "rank": int,
            "device": str | None,
            "host": str | None,
            "phases_ms": dict[str, float | None] | None,
            "cpu_ms": dict[str, float | None] | None,
            "stolen_ms": float | None,
            "switches": ({"voluntary": float, "involuntary": float}, None),
            "peak_memory_bytes": float | None,
            "samples": int | None,
        }
    ],
    "usage": (
        {
            "cores": [{"core": int, "mean_percent": float}],
            "gpus": [{"gpu": int, "mean_percent": float, "memory_bytes": float}],
        },
        None,
    ),
}
TIMELINE = [{"rank": int, "step": int, "phase": str, "start_ms": float, "end_ms": float}]
