"""From what every rank measured to the figures of the record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .run import PHASES
from .slow_rank import slow_rank


def summarise(figures: Sequence[dict[str, Any]], ranks: int) -> dict[str, Any]:
    """The record's figures of time, phases, bytes and losses from the ranks' own (servers come after the ranks)."""
    training = [item for item in figures if item["rank"] < ranks]
    steps = max(item["steps"] for item in training)
    samples = sum(item["samples"] for item in training if not item.get("repeats"))  # a stage sees samples of others
    phases = np.array([item["phases"] for item in training], dtype=np.float64)  # nanoseconds
    seconds = float(phases.sum(axis=1).mean() / 1e9)
    per_step = 1e6 * max(steps, 1)
    durations = _step_durations(training)
    slow = slow_rank(figures, ranks)
    return {
        "steps": steps,
        "samples": samples,
        "seconds": seconds,
        "samples_per_second": samples / seconds if seconds > 0 else None,
        "step_ms": _spread(durations),
        "losses": merge_losses(figures, steps),
        "phases_ms": dict(zip(PHASES, (phases.mean(axis=0) / per_step).tolist(), strict=True)),
        "overlapped_communication_ms": float(np.mean([item["overlapped"] for item in training]) / per_step),
        "communication_bytes": sum(item["bytes"] for item in figures) / max(steps, 1),
        "per_rank": [row for item in training for row in _rows(item)],
        "servers": [_server(item, ranks, per_step) for item in figures if item["rank"] >= ranks],
        "slow_rank": slow.named,
        "suspect": slow.suspect,
    }


def _rows(item: dict[str, Any]) -> list[dict[str, Any]]:
    """One row per rank; where the ranks of a process are threads, the process gives the rows itself.

    A rank's phases are per step that it made: a slow one that gave some of its shares away is no less slow for it.
    """
    phases = _per_step(item, 1e6 * max(item["made"], 1))
    row = {
        "rank": item["rank"],
        "device": item["device"],
        "host": item["host"],
        "phases_ms": phases,
        "peak_memory_bytes": item["peak_memory_bytes"],
        "samples": item["samples"],
    }
    replicas = item["extra"].get("replicas")
    return [{**row, **replica} for replica in replicas] if replicas else [row]


def _server(item: dict[str, Any], ranks: int, per_step: float) -> dict[str, Any]:
    """A server's row: how long it worked on updates, moved bytes and waited for ranks, per step of the run."""
    return {
        "server": item["rank"] - ranks,
        "host": item["host"],
        "phases_ms": _per_step(item, per_step),
        "peak_memory_bytes": item["peak_memory_bytes"],
    }


def _per_step(item: dict[str, Any], nanoseconds: float) -> dict[str, float]:
    return {name: value / nanoseconds for name, value in zip(PHASES, item["phases"], strict=True)}


def merge_losses(figures: Sequence[dict[str, Any]], steps: int) -> list[float | None]:
    """The global mean loss of each step: sums over ranks divided by the samples behind them."""
    sums, counts = sum_losses(figures, 0, steps)
    return [float(total / count) if count else None for total, count in zip(sums, counts, strict=True)]


def sum_losses(figures: Sequence[dict[str, Any]], first: int, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Losses and samples of each step from `first` up to `steps`, summed over ranks."""
    sums, counts = np.zeros(steps - first), np.zeros(steps - first, dtype=np.int64)
    for item in figures:
        for step, mean, count in item["losses"]:
            if count and first <= step < steps:
                sums[step - first] += mean * count
                counts[step - first] += count
    return sums, counts


def _step_durations(training: Sequence[dict[str, Any]]) -> np.ndarray:
    """Milliseconds of each step, the mean over ranks."""
    ends = [np.asarray(item["step_ends"], dtype=np.float64) for item in training if item["step_ends"]]
    if not ends:
        return np.zeros(0)
    shortest = min(len(item) for item in ends)
    return np.mean([np.diff(item[:shortest], prepend=0.0) for item in ends], axis=0) / 1e6


def _spread(durations: np.ndarray) -> dict[str, float] | None:
    if not len(durations):
        return None
    low, middle, high = np.percentile(durations, [10, 50, 90])
    return {"median": float(middle), "p10": float(low), "p90": float(high)}


def timeline(figures: Sequence[dict[str, Any]], most: int = 4000) -> list[dict[str, Any]]:
    """A few steps of every rank, phase by phase, in milliseconds from the first of them."""
    each = max(50, most // max(1, len(figures)))  # so that no rank is missing, however many there are
    marks = [(item["rank"], *mark) for item in figures for mark in item["trace"][:each]]
    if not marks:
        return []
    zero = min(start for _, _, _, start, _ in marks)
    return [
        {
            "rank": rank,
            "step": step + 1,
            "phase": PHASES[phase],
            "start_ms": (start - zero) / 1e6,
            "end_ms": (end - zero) / 1e6,
        }
        for rank, step, phase, start, end in marks
        if end - start > 1000  # shorter than a microsecond: nothing to see
    ]
