"""What trackers are told of a fit, under the same names in all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..run import Run

STEPS, EPOCHS, LIVE = "steps", "epochs", "live"
PARAMETERS = (
    "task", "strategy", "ranks", "exact", "device", "threads", "batch_size", "accumulate", "precision", "seed", "data",
    "loader_workers", "command", "source", "started",
)  # fmt: skip
END = (
    "steps", "updates", "samples", "seconds", "samples_per_second", "startup_seconds", "evaluation_seconds",
    "checkpoint_seconds", "pause_seconds", "step_ms", "phases_ms", "overlapped_communication_ms", "communication_bytes",
    "test", "staleness", "restarts",
)  # fmt: skip
TEXTS = ("status", "reason", "weights_sha256", "comparison")


def parameters(run: Run) -> dict[str, Any]:
    """What was asked for, known when a fit begins."""
    asked = {name: getattr(run, name) for name in PARAMETERS}
    return {name: value for name, value in {**asked, **flat("options", run.options)}.items() if value is not None}


def environment(run: Run) -> dict[str, Any]:
    """Machine and versions: the ranks tell them at the end."""
    return {name: value for name, value in flat("environment", run.environment).items() if value is not None}


def numbers(run: Run) -> dict[str, float]:
    """The figures of a finished fit: `samples_per_second`, `phases_ms/forward`, `test/per_class/3`, ..."""
    found: dict[str, Any] = {}
    for name in END:
        found |= flat(name, getattr(run, name))
    memory = [rank.get("peak_memory_bytes") for rank in run.per_rank]
    found["peak_memory_bytes"] = max((value for value in memory if value is not None), default=None)
    return only_numbers(found)


def texts(run: Run) -> dict[str, str]:
    return {name: str(value) for name in TEXTS if (value := getattr(run, name)) is not None}


def step_row(figures: Mapping[str, Any]) -> dict[str, Any]:
    return {"step": figures["step"], **{key: figures[key] for key in ("loss", "learning_rate") if key in figures}}


def epoch_row(entry: Mapping[str, Any], step: int | None) -> dict[str, Any]:
    """An epoch of the record, at its last step."""
    return {"step": step, **{f"epoch/{name}": value for name, value in entry.items() if name not in ("step", "epoch")}}


def live_row(progress: Mapping[str, Any]) -> dict[str, Any]:
    """How a fit is going: the loss is that of rank 0's share alone."""
    shown = {f"live/{name}": progress.get(name) for name in ("loss", "samples_per_second")}
    return {"step": progress["step"], **shown}


def only_numbers(row: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in row.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def flat(name: str, value: Any) -> dict[str, Any]:
    """`{"phases_ms": {"load": 1}}` as `{"phases_ms/load": 1}`; lists are left out."""
    if isinstance(value, Mapping):
        return {key: inner for part, held in value.items() for key, inner in flat(f"{name}/{part}", held).items()}
    return {} if isinstance(value, list | tuple) and name != "options" else {name: value}
