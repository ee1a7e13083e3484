"""Run: one fit as data. What `run.json` holds, what `train --json` prints, what reports are made from."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import json
import math
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from ..errors import BadInput
from .cores import available_cores
from .fields import FORMS, TIMELINE
from .presentation import Presented
from .untrusted import fits, plain, read_json, walk
from .whole_file import whole

SCHEMA = 1
LARGEST_RECORD = 1 << 30  # bytes; a million steps take about twenty million
PHASES = ("load", "transfer", "augment", "forward", "backward", "communication", "wait", "update", "other")
RECORD_FILE, TIMELINE_FILE, WEIGHTS_FILE = "run.json", "timeline.json", "weights.safetensors"
EMA_WEIGHTS_FILE = "weights_ema.safetensors"


@dataclass(repr=False)
class Run(Presented):
    """The record of one fit. Fields that are not known are None, never invented.

    `weights` (name -> CPU tensor), `ema_weights` (their average, where the task has one) and `timeline` (a few steps of every rank) are attributes of a run
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
    exact_checked: bool | None = None  # whether the promise was tried on a few samples; notes say why it was not
    device: str | None = None
    devices: list[str] = field(default_factory=list)
    threads: int | None = None
    batch_size: int | None = None
    accumulate: int | None = 1
    data: str | None = None  # where samples come from: "memory", a "dataset" read one by one, or a "stream"
    loader_workers: int | str | None = None  # processes per rank that read ahead; "auto": the fit chose
    precision: str | None = "fp32"
    transport: str | None = None  # what carried tensors between ranks: "shm", "hosts", "gloo" or "nccl"
    seed: int | None = 0
    environment: dict[str, Any] = field(default_factory=dict)
    command: str | None = None  # what repeats this run
    source: str | None = None  # what load_task reads the task from
    started: str | None = None  # ISO time, UTC
    steps: int = 0
    updates: int = 0
    samples: int | None = 0
    seconds: float | None = None
    startup_seconds: float | None = None
    evaluation_seconds: float | None = None
    checkpoint_seconds: float | None = None
    pause_seconds: float | None = None  # between epochs, until all ranks read again
    timings: dict[str, float] | None = None  # seconds of the whole fit on the clock on the wall, in parts (run_fit.py)
    samples_per_second: float | None = None
    step_ms: dict[str, float] | None = None  # median, p10, p90
    epochs: list[dict[str, Any]] = field(default_factory=list)
    losses: list[float | None] = field(default_factory=list)
    steps_per_loss: int = 1  # more in fits of very many steps, where each loss is the mean of so many
    phases_ms: dict[str, float | None] | None = None  # null: a phase that cannot be seen (a script's)
    channels_last: bool | None = None  # whether the model's images lay in memory so (docs/benchmarks.md)
    wide_products: bool | None = None  # whether oneDNN made its large products of matrices (docs/benchmarks.md)
    call: str | None = None  # how the model was called: "one", "args" or "kwargs" (docs/tasks.md)
    phases_source: str | None = None  # "measured", or how a split was sampled (captured steps)
    capture: dict[str, Any] | None = None  # on a GPU: steps replayed from a CUDA graph, or the reason why none were
    overlapped_communication_ms: float | None = None
    communication_bytes: float | None = None
    per_rank: list[dict[str, Any]] = field(default_factory=list)
    servers: list[dict[str, Any]] = field(default_factory=list)  # parameter_server: server, host, phases_ms, memory
    slow_rank: dict[str, Any] | None = None  # who is behind the others: rank (or server), phase, behind_ms
    usage: dict[str, Any] | None = None  # use of every core and GPU while training, in percent
    test: dict[str, Any] | None = None
    ema: dict[str, Any] | None = None  # of the averaged weights: decay, test, weights_sha256
    staleness: dict[str, Any] | None = None
    weights_sha256: str | None = None
    weight: str | None = None  # what the loss is a mean over: "given" by the task, or as found; null: samples
    rounds: list[float] | None = (
        None  # samples per second of each round; the figures of time are those of the median one
    )
    round_phases_ms: list[dict[str, float | None]] | None = None  # of each round, as phases_ms
    whole_fit: dict[str, Any] | None = None  # where there are rounds: samples_per_second, step_ms, phases_ms of the fit
    others_cores: float | None = None  # cores that other processes used while a comparison was measured
    comparison: str | None = None  # which comparison this run is a row of: their rounds were made in turn
    asked: str | None = None  # there: the strategy as it was asked for; its rows with other ranks belong together
    batch_per_rank: int | None = None  # there, where batches grow with the ranks: what each rank adds to the batch
    forecast: dict[str, Any] | None = None  # what was forecast of this run before it started (docs/plan-score.md)
    resumed_from: dict[str, Any] | None = None
    restarts: int = 0
    faults: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.weights: dict[str, Any] | None = None
        self.ema_weights: dict[str, Any] | None = None
        self.suspect: dict[str, Any] | None = None  # as slow_rank, from this fit alone: a comparison asks several
        self.durations_ms: Sequence[float] = []  # of every step (step_times.py), the mean over ranks
        self.timeline: list[dict[str, Any]] = []  # {rank, step, phase, start_ms, end_ms}
        self.folder: Path | None = None

    @property
    def label(self) -> str:
        """The row label in a table: the strategy with its options."""
        if not self.options:
            return self.strategy
        return self.strategy + ":" + ",".join(f"{key}={option_text(value)}" for key, value in self.options.items())

    def __repr__(self) -> str:
        """One line: what ran, how fast, how good, how it ended."""
        parts = [self.task, self.label, f"{self.ranks} rank{'s' * (self.ranks != 1)}"]
        if self.samples_per_second:
            parts.append(f"{self.samples_per_second:,.0f} samples/s")
        if isinstance(accuracy := (self.test or {}).get("accuracy"), float):
            parts.append(f"accuracy {100 * accuracy:.2f} %")
        why = (self.reason or "").strip().splitlines()[:1]
        return plain(f"<Run {' · '.join([*parts, ': '.join([self.status, *why])])}>")

    def _presented(self) -> list[Run]:
        return [self]

    def record(self) -> dict[str, Any]:
        """The record as plain JSON-able data; figures that are not finite become null."""
        return {f.name: finite(getattr(self, f.name)) for f in dataclasses.fields(self)}

    def to_json(self) -> str:
        """The record, a value per line; the losses, of which there may be very many, in one."""
        record = self.record()
        losses = json.dumps(record["losses"], allow_nan=False)
        text = json.dumps({**record, "losses": []}, indent=1, allow_nan=False)
        return text.replace('\n "losses": []', f'\n "losses": {losses}')

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the record, the timeline and the weights into `folder`: all of them whole, or none.

        So no record ever stands beside the weights of another run because the disk was full in between.
        """
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as files:
            if self.weights is not None:
                _write_weights(files.enter_context(whole(target / WEIGHTS_FILE)), self.weights)
            if self.ema_weights is not None:
                _write_weights(files.enter_context(whole(target / EMA_WEIGHTS_FILE)), self.ema_weights)
            if self.timeline:
                files.enter_context(whole(target / TIMELINE_FILE)).write_text(json.dumps(finite(self.timeline)))
            files.enter_context(whole(target / RECORD_FILE)).write_text(self.to_json())
        if self.weights is not None and self.ema_weights is None:
            (target / EMA_WEIGHTS_FILE).unlink(missing_ok=True)  # of an earlier run
        self.folder = target
        return target

    @classmethod
    def from_record(cls, record: Mapping[str, Any], source: str = "the record") -> Run:
        """A Run from plain data written by any version; unknown fields are dropped, missing ones stay unknown."""
        schema: Any = record.get("schema")
        named = isinstance(record.get("task"), str) and isinstance(record.get("strategy"), str)
        if not fits(schema, int) or not named:
            raise BadInput(f"{source} is not a manyhands run record (no schema, task or strategy in it)")
        if schema > SCHEMA:
            raise BadInput(
                f"{source} was written by a newer manyhands (record schema {schema}, this version reads up to {SCHEMA}); "
                "update manyhands to read it"
            )
        forms = {**_forms(), **FORMS}
        return cls(**{key: value for key, value in record.items() if key in forms and fits(value, forms[key])})

    @classmethod
    def load(cls, path: str | os.PathLike[str], weights: bool = True, series: bool = True) -> Run:
        """Read a run folder or its run.json; the weights come along where they are stored (and wanted).

        Without `series`, the losses of all steps and the timeline are passed over, as lists of many runs have no use for.
        """
        target = Path(path)
        file = target / RECORD_FILE if target.is_dir() else target
        if not file.is_file():
            raise BadInput(f"no run at {target}: {RECORD_FILE} not found there")
        if file.suffix != ".json":
            raise BadInput(f"{file} is not a run; give the folder of a run, or a folder that contains runs")
        data = read_json(file, LARGEST_RECORD, unparsed="" if series else "losses")
        if not isinstance(data, dict):
            raise BadInput(f"{file} is not a manyhands run record (a {type(data).__name__}, not an object)")
        run = cls.from_record(data, str(file))
        run.folder = file.parent
        timeline = file.parent / TIMELINE_FILE
        if series and timeline.is_file():
            with contextlib.suppress(BadInput):
                loaded = read_json(timeline, LARGEST_RECORD)
                run.timeline = loaded if fits(loaded, TIMELINE) else []
        stored, averaged = file.parent / WEIGHTS_FILE, file.parent / EMA_WEIGHTS_FILE
        if weights and stored.is_file():
            run.weights = _read_weights(stored)
        if weights and run.ema is not None and averaged.is_file():
            run.ema_weights = _read_weights(averaged)
        return run


@cache
def _forms() -> dict[str, Any]:
    """The form of every field. Another version may have kept one in another form: then it is as good as missing."""
    return get_type_hints(Run)


def _write_weights(file: Path, weights: Mapping[str, Any]) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file({name: tensor.contiguous() for name, tensor in weights.items()}, file)
    except SafetensorError as problem:  # it hides what the system said: a full disk, say
        number = re.search(r"os error (\d+)", str(problem))
        code = int(number[1]) if number else errno.EIO
        raise OSError(code, os.strerror(code)) from None


def _read_weights(file: Path) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return dict(load_file(file))
    except (SafetensorError, OSError, ValueError, KeyError) as problem:
        raise BadInput(f"{file} holds no weights that can be read: {plain(str(problem))}") from None


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


def _cpu_name() -> str | None:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or None


def finite(value: Any) -> Any:
    """Plain data with null for figures that JSON does not know."""
    return walk(value, lambda item: None if isinstance(item, float) and not math.isfinite(item) else item)


def option_text(value: Any) -> str:
    """An option as it is written: `true`, `0.5`, lists as `1+3`."""
    if isinstance(value, tuple | list):
        return "+".join(option_text(item) for item in value)
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)
