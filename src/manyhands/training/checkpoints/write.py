"""Writing a checkpoint: into a folder of another name, synced to the disk and published by a rename."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import BadInput
from .checkpoint import FORMAT, MANIFEST, PLAIN, STATE, TENSOR_FILES, Checkpoint, manifest
from .plain_state import take_apart

_PIECE = 8 << 20  # bytes written and hashed at a time
_SPARE = 1 << 20  # bytes that stay free on the disk
_NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.complex64: "C64",
}  # fmt: skip


def write(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write and publish a checkpoint under `folder`; returns its path."""
    scratch = folder / f".step-{checkpoint.step:08d}.part"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        files = _contents(checkpoint)
        _check_room(scratch, sum(len(header) + _bytes(tensors) for header, tensors in files.values()))
        sums = {name: _write_file(scratch / name, *content) for name, content in files.items()}
        _write_file(scratch / MANIFEST, manifest(sums), [])
        _sync_folder(scratch)
        return _publish(scratch, folder / f"step-{checkpoint.step:08d}")
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def _contents(checkpoint: Checkpoint) -> dict[str, tuple[bytes, list[Tensor]]]:
    """Every file as a beginning and the tensors that follow it."""
    plain: dict[str, Any] = {"format": FORMAT, **{name: getattr(checkpoint, name) for name in PLAIN}}
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
