"""Run: one fit as data. What `run.json` holds, what `train --json` prints, what reports are made from."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import BadInput

SCHEMA = 1
PHASES = ("load", "transfer", "augment", "forward", "backward", "communication", "wait", "update", "other")
RECORD_FILE, TIMELINE_FILE, WEIGHTS_FILE = "run.json", "timeline.json", "weights.safetensors"


@dataclass
class Run:
    """The record of one fit. Fields that are not known are None, never invented.

    `weights` (name -> CPU tensor) and `timeline` (a few steps of every rank) are attributes of a run
    but not part of the record: they are stored beside it.
    """

    task: str
    strategy: str
    options: dict[str, Any] = field(default_factory=dict)
    schema: int = SCHEMA
    status: str = "done"  # done | failed | refused | stopped
    reason: str | None = None
    ranks: int = 1
    exact: bool | None = None
    exact_reason: str | None = None
    device: str | None = None
    devices: list[str] = field(default_factory=list)
    threads: int | None = None
    batch_size: int | None = None
    accumulate: int = 1
    precision: str = "fp32"
    seed: int = 0
    environment: dict[str, Any] = field(default_factory=dict)
    command: str | None = None  # what repeats this run
    source: str | None = None  # what load_task reads the task from
    started: str | None = None  # ISO time, UTC
    steps: int = 0
    updates: int = 0
    samples: int = 0
    seconds: float | None = None
    startup_seconds: float | None = None
    evaluation_seconds: float | None = None
    checkpoint_seconds: float | None = None
    samples_per_second: float | None = None
    step_ms: dict[str, float] | None = None  # median, p10, p90
    epochs: list[dict[str, Any]] = field(default_factory=list)
    losses: list[float | None] = field(default_factory=list)
    phases_ms: dict[str, float] | None = None
    channels_last: bool | None = None  # whether the model's images lay in memory so (docs/benchmarks.md)
    phases_source: str | None = None  # "measured", or how a split was sampled (captured steps)
    capture: dict[str, Any] | None = None  # on a GPU: steps replayed from a CUDA graph, or the reason why none were
    overlapped_communication_ms: float | None = None
    communication_bytes: float | None = None
    per_rank: list[dict[str, Any]] = field(default_factory=list)
    servers: list[dict[str, Any]] = field(default_factory=list)  # parameter_server: server, host, phases_ms, memory
    slow_rank: dict[str, Any] | None = None  # who holds the others up: rank (or server), phase, behind_ms
    usage: dict[str, Any] | None = None  # use of every core and GPU while training, in percent
    test: dict[str, Any] | None = None
    staleness: dict[str, Any] | None = None
    weights_sha256: str | None = None
    rounds: list[float] | None = None
    comparison: str | None = None  # which comparison this run is a row of: their rounds were made in turn
    resumed_from: dict[str, Any] | None = None
    restarts: int = 0
    faults: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.weights: dict[str, Any] | None = None
        self.timeline: list[dict[str, Any]] = []  # {rank, step, phase, start_ms, end_ms}
        self.folder: Path | None = None

    @property
    def label(self) -> str:
        """The row label in a table: the strategy with its options."""
        if not self.options:
            return self.strategy
        return self.strategy + ":" + ",".join(f"{key}={option_text(value)}" for key, value in self.options.items())

    def record(self) -> dict[str, Any]:
        """The record as plain JSON-able data; figures that are not finite become null."""
        return {f.name: _finite(getattr(self, f.name)) for f in dataclasses.fields(self)}

    def to_json(self) -> str:
        return json.dumps(self.record(), indent=1, allow_nan=False)

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the record, the timeline and the weights into `folder`; each file appears whole or not at all."""
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        if self.weights is not None:
            from safetensors.torch import save_file

            scratch = target / (WEIGHTS_FILE + ".part")
            save_file({name: tensor.contiguous() for name, tensor in self.weights.items()}, scratch)
            os.replace(scratch, target / WEIGHTS_FILE)
        if self.timeline:
            _write_whole(target / TIMELINE_FILE, json.dumps(_finite(self.timeline)))
        _write_whole(target / RECORD_FILE, self.to_json())
        self.folder = target
        return target

    @classmethod
    def from_record(cls, record: Mapping[str, Any], source: str = "the record") -> Run:
        """A Run from plain data written by any version; unknown fields are dropped, missing ones stay unknown."""
        schema = record.get("schema")
        if not isinstance(schema, int) or "strategy" not in record or "task" not in record:
            raise BadInput(f"{source} is not a manyhands run record (no schema, task or strategy in it)")
        if schema > SCHEMA:
            raise BadInput(
                f"{source} was written by a newer manyhands (record schema {schema}, this version reads up to {SCHEMA}); "
                "update manyhands to read it"
            )
        empty = cls("", "").__dict__
        known = {f.name for f in dataclasses.fields(cls)}
        return cls(**{key: value for key, value in record.items() if key in known and _same_kind(value, empty[key])})

    @classmethod
    def load(cls, path: str | os.PathLike[str], weights: bool = True) -> Run:
        """Read a run folder or its run.json; the weights come along where they are stored (and wanted)."""
        target = Path(path)
        file = target / RECORD_FILE if target.is_dir() else target
        if not file.is_file():
            raise BadInput(f"no run at {target}: {RECORD_FILE} not found there")
        try:
            data = json.loads(file.read_text())
        except (ValueError, OSError) as problem:
            raise BadInput(f"{file} cannot be read as a run record: {problem}") from None
        if not isinstance(data, dict):
            raise BadInput(f"{file} is not a manyhands run record (a {type(data).__name__}, not an object)")
        run = cls.from_record(data, str(file))
        run.folder = file.parent
        timeline = file.parent / TIMELINE_FILE
        if timeline.is_file():
            try:
                loaded = json.loads(timeline.read_text())
                run.timeline = loaded if isinstance(loaded, list) else []
            except ValueError:
                run.timeline = []
        stored = file.parent / WEIGHTS_FILE
        if weights and stored.is_file():
            from safetensors.torch import load_file

            run.weights = load_file(stored)
        return run


def _same_kind(value: Any, default: Any) -> bool:
    """Another version may have kept a field in another form: then it is as good as missing."""
    return default is None or (
        isinstance(value, bool) == isinstance(default, bool) and isinstance(value, type(default))
    )


def weights_digest(weights: Mapping[str, Any]) -> str:
    """SHA-256 over the weights in the order of their names: equal digests mean equal bits."""
    import torch

    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].detach().cpu().contiguous()
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def environment() -> dict[str, Any]:
    """Machine and versions, so that every figure can say where it was measured."""
    import torch

    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu": _cpu_name(),
        "gpu": gpu,
        "cores": available_cores(),
        "system": f"{platform.system()} {platform.release()}",
    }


def available_cores() -> int:
    """The cores this process may use, not those the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_name() -> str | None:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or None


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def option_text(value: Any) -> str:
    """An option as it is written: `true`, `0.5`, lists as `1+3`."""
    if isinstance(value, tuple | list):
        return "+".join(option_text(item) for item in value)
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def _write_whole(path: Path, text: str) -> None:
    scratch = path.with_name(path.name + ".part")
    scratch.write_text(text)
    os.replace(scratch, path)
