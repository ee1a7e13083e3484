"""Checkpoints: one folder that any strategy with any number of ranks writes and reads.

    checkpoints/step-00000200/
        model.safetensors       weights by name
        optimizer.safetensors   tensors of the optimizer and the schedule, by parameter name
        history.safetensors     losses and times of the steps so far
        state.json              everything else: position, options, task; tensors are named, not held
        manifest.json           size and SHA-256 of the files above; written last

A checkpoint is written into a folder of another name, synced to the disk and published by a rename, so a
half-written one is never seen. One that was cut or changed afterwards does not match its manifest and is passed
over for the one before it. Nothing is pickled: reading a checkpoint cannot run code.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import BadInput
from ...record.untrusted import fits
from ...strategies.job import Job
from .plain_state import assemble, take_apart

FORMAT = 1
MANIFEST, STATE = "manifest.json", "state.json"
TENSOR_FILES = {"weights": "model.safetensors", "state": "optimizer.safetensors", "history": "history.safetensors"}
FILES = (*TENSOR_FILES.values(), STATE)
CONDITIONS = "conditions"  # the key under which a checkpoint of a task keeps what may differ (conditions.py)
_PIECE = 8 << 20  # bytes written and hashed at a time
_SPARE = 1 << 20  # bytes that stay free on the disk
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.complex64: "C64",
}  # fmt: skip


@dataclass
class Checkpoint:
    """Everything a fit needs to go on: where it was, the weights, the optimizer, and what was measured so far."""

    step: int  # steps done since the beginning
    epoch: int  # the epoch that goes on, from 0
    number: int  # steps of that epoch already done
    weights: dict[str, Tensor]
    state: dict[str, Any]  # optimizer, schedule and updates, as `Worker.state` gives them
    history: dict[str, Any]
    task: dict[str, Any]  # see `fingerprint`
    strategy: str
    ranks: int
    path: Path | None = field(default=None, compare=False)


class Damaged(Exception):
    """A checkpoint that must not be loaded, and why."""


# ---------------------------------------------------------------- when, and of what


@dataclass(frozen=True)
class Interval:
    """Between checkpoints: a number of steps, or seconds."""

    steps: int | None = None
    seconds: float | None = None


def interval(spec: int | str | None) -> Interval | None:
    """`200` (steps), `"30s"`, `"10m"` or `"1h"`."""
    if spec is None:
        return None
    text = str(spec).strip().lower()
    if not isinstance(spec, bool) and isinstance(spec, int | str):
        if text.isdecimal() and int(text) > 0:
            return Interval(steps=int(text))
        try:
            seconds = float(text[:-1]) * _UNITS[text[-1:]]
            if 0 < seconds < float("inf"):
                return Interval(seconds=seconds)
        except (KeyError, ValueError):
            pass
    raise BadInput(f"checkpoint_every must be a number of steps (200) or a time (30s, 10m, 1h) (found {spec!r})")


def fingerprint(job: Job) -> dict[str, Any]:
    """What must be the same for a checkpoint to fit: the model by name, the data's order, the kind of optimizer."""
    task = job.task
    print_: dict[str, Any] = {
        "name": task.name,
        "weights": {
            name: [_type(value), list(value.shape)]
            for name, value in job.model.state_dict().items()
            if isinstance(value, Tensor)
        },
        "optimizer": _kind(task.optimizer),
        "batch_size": task.batch_size,
        "seed": task.seed,
        "samples": job.order.samples,
        "accumulate": job.order.accumulate,
    }
    if task.schedule is not None:
        print_["epochs"] = job.epochs  # the schedule spans them
        if job.endless:
            print_["max_steps"] = job.settings.max_steps
    return print_


def _type(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _kind(factory: Any) -> str:
    inner = getattr(factory, "func", factory)  # functools.partial
    return str(getattr(inner, "__qualname__", type(inner).__qualname__))


def refuse_other_task(checkpoint: Checkpoint, task: Mapping[str, Any]) -> None:
    """A checkpoint of another task or model is bad input; the first difference says which."""
    difference = first_difference(checkpoint.task, task)
    if difference:
        raise BadInput(
            f"the checkpoint {checkpoint.path} is of another task: {difference}; "
            "resume with the task it was made with, or use another run folder"
        )


def first_difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    for key in dict.fromkeys([*new, *old]):
        if key == CONDITIONS:
            continue  # they may differ
        before, now = old.get(key), new.get(key)
        if before != now:
            return _weight_difference(before, now) if key == "weights" else f"{key} was {before!r} and is {now!r}"
    return None


def _weight_difference(before: Any, now: Any) -> str:
    for name in dict.fromkeys([*now, *before]):
        if name not in now or name not in before:
            return f'only {"the checkpoint" if name in before else "the model"} has the weight "{name}"'
        if now[name] != before[name]:
            return f'weight "{name}" was {_form(before[name])} and is {_form(now[name])}'
    return "the weights differ"


def _form(entry: Any) -> str:
    return f"{entry[0]} {tuple(entry[1])}"


# ---------------------------------------------------------------- writing


def write(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write and publish a checkpoint under `folder`; returns its path."""
    scratch = folder / f".step-{checkpoint.step:08d}.part"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        files = _contents(checkpoint)
        _check_room(scratch, sum(len(header) + _bytes(tensors) for header, tensors in files.values()))
        sums = {name: _write_file(scratch / name, *content) for name, content in files.items()}
        _write_file(scratch / MANIFEST, _manifest(sums), [])
        _sync_folder(scratch)
        return _publish(scratch, folder / f"step-{checkpoint.step:08d}")
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def _contents(checkpoint: Checkpoint) -> dict[str, tuple[bytes, list[Tensor]]]:
    """Every file as a beginning and the tensors that follow it."""
    plain: dict[str, Any] = {
        "format": FORMAT,
        "step": checkpoint.step,
        "epoch": checkpoint.epoch,
        "number": checkpoint.number,
        "strategy": checkpoint.strategy,
        "ranks": checkpoint.ranks,
        "task": checkpoint.task,
    }
    files: dict[str, tuple[bytes, list[Tensor]]] = {}
    for part, file in TENSOR_FILES.items():
        tensors: dict[str, Tensor] = {}
        plain[part] = take_apart(getattr(checkpoint, part), tensors, part)
        files[file] = _safetensors(tensors)
    files[STATE] = (json.dumps(plain, allow_nan=False).encode(), [])
    return files


def _safetensors(tensors: Mapping[str, Tensor]) -> tuple[bytes, list[Tensor]]:
    """The header of a safetensors file and the tensors in its order.

    Written here rather than by the library, which would hold the interpreter while it copies and writes.
    """
    header: dict[str, Any] = {}
    offset = 0
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    for name, tensor in ordered:
        if tensor.dtype not in _NAMES:
            raise BadInput(f'a checkpoint cannot hold "{name}" ({tensor.dtype})')
        end = offset + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, [tensor for _, tensor in ordered]


def _bytes(tensors: list[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _write_file(path: Path, beginning: bytes, tensors: list[Tensor]) -> dict[str, Any]:
    """Write, hash and sync one file, in pieces that let the training thread run."""
    digest, size = hashlib.sha256(), 0
    with open(path, "xb", buffering=0) as file:
        for piece in _pieces(beginning, tensors):
            done = 0
            while done < len(piece):
                done += file.write(piece[done:]) or 0
            digest.update(piece)
            size += len(piece)
        os.fsync(file.fileno())
    return {"bytes": size, "sha256": digest.hexdigest()}


def _pieces(beginning: bytes, tensors: list[Tensor]) -> Iterator[memoryview]:
    yield memoryview(beginning)
    for tensor in tensors:
        if tensor.numel():
            flat: Any = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            whole = memoryview(flat)
            for start in range(0, len(whole), _PIECE):
                yield whole[start : start + _PIECE]


def _check_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed + _SPARE:
        raise OSError(errno.ENOSPC, f"{needed / 1e6:.1f} MB needed, {free / 1e6:.1f} MB free")


def _manifest(sums: Mapping[str, Mapping[str, Any]]) -> bytes:
    own = hashlib.sha256(json.dumps(sums, sort_keys=True).encode()).hexdigest()
    return json.dumps({"format": FORMAT, "files": sums, "sha256": own}, indent=1, sort_keys=True).encode()


def _publish(scratch: Path, target: Path) -> Path:
    """The rename is the moment a checkpoint begins to exist."""
    if target.exists():
        old = target.with_name(f".{target.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        os.rename(target, old)
        os.rename(scratch, target)
        shutil.rmtree(old, ignore_errors=True)
    else:
        os.rename(scratch, target)
    _sync_folder(target.parent)
    return target


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# ---------------------------------------------------------------- reading


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
            raise BadInput(f"{target} is of another manyhands (checkpoint format {found!r}, this one reads {FORMAT})")
        parts = {part: assemble(plain[part], parse(data[file])) for part, file in TENSOR_FILES.items()}
        read = Checkpoint(
            plain["step"], plain["epoch"], plain["number"], parts["weights"], parts["state"], parts["history"],
            plain["task"], plain["strategy"], plain["ranks"], target,
        )  # fmt: skip
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
        and all(isinstance(checkpoint.history.get(name), Tensor) for name in ("losses", "counts", "durations"))
        and fits(checkpoint.history.get("faults"), list[dict[str, Any]])
        and {name: [_type(value), list(value.shape)] for name, value in checkpoint.weights.items()}
        == {name: list(form) for name, form in checkpoint.task["weights"].items()}
    )


def _read_manifest(target: Path) -> dict[str, Any]:
    try:
        text = (target / MANIFEST).read_bytes()
        content = json.loads(text)
        files: dict[str, Any] = content["files"]
        whole = text == _manifest(files) and sorted(files) == sorted(FILES)
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


def published(folder: Path) -> list[Path]:
    """The checkpoints under a folder, newest first."""
    return sorted((path for path in folder.glob("step-*") if path.name[5:].isdecimal()), key=step_of, reverse=True)


def step_of(path: Path) -> int:
    return int(path.name[5:])


def latest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest whole checkpoint, and a line for every one that had to be passed over."""
    passed_over: list[str] = []
    for path in published(folder):
        try:
            return load(path), passed_over
        except Damaged as reason:
            passed_over.append(f"checkpoint {path.name} is not used: {reason}")
    return None, passed_over
