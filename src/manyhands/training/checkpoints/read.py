"""Reading checkpoints: every byte as it was written, or not at all; the newest whole one of a folder."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ...errors import BadInput
from ...record.untrusted import fits
from .checkpoint import CONDITIONS, FILES, FORMAT, MANIFEST, PLAIN, STATE, TENSOR_FILES, Checkpoint, manifest, published
from .plain_state import assemble
from .same_task import dtype_name


class Damaged(Exception):
    """A checkpoint that must not be loaded, and why."""


def load(path: str | os.PathLike[str]) -> Checkpoint:
    """Read one checkpoint; raises `Damaged` unless every byte is as it was written."""
    from safetensors import SafetensorError
    from safetensors.torch import load as parse

    target = Path(path)
    data = {name: _read_checked(target, name, entry) for name, entry in _read_manifest(target).items()}
    try:
        plain = json.loads(data[STATE])
        if plain["format"] != FORMAT:
            found = plain["format"]
            raise BadInput(
                f"{target} was written by another version of manyhands (checkpoint format {found!r}, this one reads {FORMAT})"
            )
        parts = {part: assemble(plain[part], parse(data[file])) for part, file in TENSOR_FILES.items()}
        read = Checkpoint(**{name: plain[name] for name in PLAIN}, **parts, path=target)
        whole = _in_order(read)
    except BadInput:
        raise
    except (SafetensorError, LookupError, TypeError, ValueError, AttributeError, RecursionError, OverflowError):
        whole = False
    if not whole:  # its sums are right: it was not damaged but made by somebody else
        raise Damaged("its content is not what manyhands writes")
    return read


def _in_order(checkpoint: Checkpoint) -> bool:
    """Whether what stands in it can be what it says; tensors are compared with the model's later."""
    counts = (checkpoint.step, checkpoint.epoch, checkpoint.number, checkpoint.ranks)
    return (
        all(fits(count, int) and count >= 0 for count in counts)
        and fits(checkpoint.task, dict[str, Any])
        and fits(checkpoint.task.get("weights"), dict[str, tuple[str, list[int]]])
        and fits(checkpoint.task.get(CONDITIONS, {}), dict[str, Any])
        and fits(checkpoint.strategy, str)
        and isinstance(checkpoint.state, dict)
        and isinstance(checkpoint.history, dict)
        and isinstance(checkpoint.history.get("durations"), Tensor)
        and (_losses_of_older(checkpoint.history) or _losses_and_times(checkpoint.history))
        and fits(checkpoint.history.get("faults"), list[dict[str, Any]])
        and {name: [dtype_name(value), list(value.shape)] for name, value in checkpoint.weights.items()}
        == {name: list(form) for name, form in checkpoint.task["weights"].items()}
    )


def _losses_and_times(history: dict[str, Any]) -> bool:
    times = history["times"]
    least = [(history["noted"], 0), (history["steps_per_loss"], 1), (times["steps"], 0), (times["each"], 1)]
    return (
        all(isinstance(history.get(name), Tensor) for name in ("loss_sums", "loss_units"))
        and all(fits(count, int) and count >= lowest for count, lowest in least)
        and len(times) == 2
    )


def _losses_of_older(history: dict[str, Any]) -> bool:
    """The mean of every step, and in the oldest what it was a mean over."""
    return isinstance(history.get("losses"), Tensor) and all(
        isinstance(history.get(name, Tensor()), Tensor) for name in ("counts", "units")
    )


def _read_manifest(target: Path) -> dict[str, Any]:
    try:
        text = (target / MANIFEST).read_bytes()
        content = json.loads(text)
        files: dict[str, Any] = content["files"]
        whole = text == manifest(files) and sorted(files) == sorted(FILES)
    except FileNotFoundError:
        raise Damaged(f"it has no {MANIFEST}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        whole = False
    if not whole:
        raise Damaged(f"its {MANIFEST} is damaged")
    return files


def _read_checked(target: Path, name: str, entry: Mapping[str, Any]) -> bytes:
    try:
        data = (target / name).read_bytes()
    except OSError as problem:
        raise Damaged(f"{name} cannot be read ({problem.strerror})") from None
    if len(data) != entry["bytes"]:
        raise Damaged(f"{name} has {len(data)} bytes, its manifest says {entry['bytes']}")
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise Damaged(f"the SHA-256 of {name} is not that of its manifest")
    return data


def latest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest whole checkpoint, and a line for every one that had to be passed over."""
    passed_over: list[str] = []
    for path in published(folder):
        try:
            return load(path), passed_over
        except Damaged as reason:
            passed_over.append(f"checkpoint {path.name} is not used: {reason}")
    return None, passed_over
