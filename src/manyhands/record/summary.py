"""From what every rank measured to the figures of the record."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from .run import PHASES
from .running_totals import MADE, STOLEN
from .slow_rank import slow_rank
from .step_times import StepTimes

NOT_SAID = {"cpu_ms": None, "stolen_ms": None, "switches": None}


def summarise(figures: Sequence[dict[str, Any]], ranks: int) -> dict[str, Any]:
    """The record's figures of time, phases and bytes from the ranks' own (servers come after the ranks)."""
    training = [item for item in figures if item["rank"] < ranks]
    steps = max(item["steps"] for item in training)
    samples = sum(item["samples"] for item in training if not item["repeats"])  # a stage sees samples of others
    phases = np.array([item["phases"] for item in training], dtype=np.float64)  # nanoseconds
    seconds = float(phases.sum(axis=1).mean() / 1e9)
    per_step = 1e6 * max(steps, 1)
    slow, durations = slow_rank(figures, ranks), _durations_ms(training)
    return {
        "steps": steps,
        "samples": samples,
        "seconds": seconds,
        "samples_per_second": samples / seconds if seconds > 0 else None,
        "step_ms": _step_ms(durations),
        "durations_ms": array("d", durations.tobytes()),
        "phases_ms": dict(zip(PHASES, (phases.mean(axis=0) / per_step).tolist(), strict=True)),
        "overlapped_communication_ms": float(np.mean([item["overlapped"] for item in training]) / per_step),
        "communication_bytes": sum(item["bytes"] for item in figures) / max(steps, 1),
        "per_rank": [row for item in training for row in _rows(item)],
        "servers": [
            {"server": item["rank"] - ranks, **_measured(item, steps)} for item in figures if item["rank"] >= ranks
        ],
        "slow_rank": slow.named,
        "suspect": slow.suspect,
    }


def _rows(item: dict[str, Any]) -> list[dict[str, Any]]:
    """One row per rank; where the ranks of a process are threads, the process gives the rows itself.

    A rank's phases are per step that it made: a slow one that gave some of its shares away is no less slow for it.
    """
    who = {"rank": item["rank"], "device": item["device"]}
    row = {**who, **_measured(item, item["made"]), "samples": item["samples"]}
    replicas = item["extra"].get("replicas") or [{}]  # one process: what its cores did is told once
    return [{**row, **(NOT_SAID if number else {}), **replica} for number, replica in enumerate(replicas)]


def _measured(item: dict[str, Any], steps: int) -> dict[str, Any]:
    phases = [value / (1e6 * max(steps, 1)) for value in item["phases"]]
    return {
        "host": item["host"],
        "phases_ms": dict(zip(PHASES, phases, strict=True)),
        **_on_cores(item, phases),
        "peak_memory_bytes": item["peak_memory_bytes"],
    }


def _on_cores(item: dict[str, Any], phases: Sequence[float]) -> dict[str, Any]:
    """What the cores did for a process in its phases; beside a GPU, where phases are the device's, nothing is said."""
    shares, switches = item.get("cpu_per_wall"), item.get("switches")
    if not item["device"].startswith("cpu") or not shares or not switches:
        return NOT_SAID
    used = [
        0.0 if not time else None if share is None else time * share for time, share in zip(phases, shares, strict=True)
    ]
    first, last = item["marks"][0], item["marks"][-1]
    return {
        "cpu_ms": dict(zip(PHASES, used, strict=True)),
        "stolen_ms": last[STOLEN] / (1e6 * max(last[MADE] - first[MADE], 1)),
        "switches": {"voluntary": switches[0], "involuntary": switches[1]},
    }


def _durations_ms(training: Sequence[dict[str, Any]]) -> np.ndarray:
    """How long steps took, each the mean over ranks."""
    times = [item["step_times"] for item in training if item["step_times"].kept]
    return np.array(StepTimes.mean(times).kept) / 1e6 if times else np.zeros(0)


def _step_ms(durations: np.ndarray) -> dict[str, float] | None:
    if not len(durations):
        return None
    low, middle, high = np.percentile(durations, [10, 50, 90]).tolist()
    return {"median": middle, "p10": low, "p90": high}


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
