"""An evaluation in words: what a record's `test`, and that of its averaged weights, says in a line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

OWN = ("samples", "loss", "accuracy", "per_class")  # what every evaluation says


def metrics_of(test: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of the task's own metrics."""
    return {name: value for name, value in test.items() if name not in OWN}


def in_words(test: Mapping[str, Any]) -> str:
    """`accuracy 98.20 %, loss 0.0612, f1 0.9811 over 10,000 samples`; of metrics the single numbers."""
    accuracy, loss, samples = test.get("accuracy"), test.get("loss"), test.get("samples")
    parts = [] if accuracy is None else [f"accuracy {100 * accuracy:.2f} %"]
    parts.append(f"loss {'-' if loss is None else format(loss, '.4f')}")
    parts += [f"{name} {value:.4f}" for name, value in metrics_of(test).items() if type(value) in (int, float)]
    return f"{', '.join(parts)} over {'-' if samples is None else format(samples, ',')} samples"
