"""Parcels: anything a user can write, by value, from one process to others.

cloudpickle carries lambdas, closures and classes of `__main__` or a notebook. Tensors do not go through
the pickle stream: their bytes lie behind it in an anonymous file, which every receiver maps privately
(copy on write). A thousand ranks that only read the data share one copy of it, and a rank that writes
changes its own copy alone.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import sys
from types import ModuleType
from typing import Any

import cloudpickle
import torch
from torch import Tensor

from .memory import ALIGN, anonymous_file, map_file

_POPULATE_READ = 22  # madvise: map all pages now, without copying them
_HEADER = 16  # two 64-bit numbers: length of the stream, where the buffers begin


class _Packer(cloudpickle.Pickler):  # type: ignore[misc]
    """Lays the bytes of plain CPU tensors aside; everything else is cloudpickle's business."""

    def __init__(self, stream: io.BytesIO):
        super().__init__(stream, protocol=5)
        self.buffers: list[Tensor] = []
        self.places: dict[tuple[int, int], tuple[int, int]] = {}  # storage -> (number, bytes)

    def reducer_override(self, value: Any) -> Any:
        if type(value) is Tensor and _is_plain(value):
            storage = value.untyped_storage()
            key = (storage.data_ptr(), storage.nbytes())
            if key not in self.places:
                self.places[key] = (len(self.buffers), storage.nbytes())
                self.buffers.append(torch.empty(0, dtype=torch.uint8).set_(storage))  # type: ignore[call-overload]
            number = self.places[key][0]
            return _unpack_tensor, (
                number,
                value.dtype,
                value.storage_offset(),
                tuple(value.shape),
                value.stride(),
                value.requires_grad,
            )
        return super().reducer_override(value)


def _is_plain(tensor: Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and tensor.is_leaf
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
        and tensor.untyped_storage().nbytes() >= 1024
    )


_opened: list[Tensor] = []  # the buffers of the parcel being opened (a parcel is opened by one thread)


def _unpack_tensor(
    number: int, dtype: torch.dtype, offset: int, shape: tuple[int, ...], stride: tuple[int, ...], grad: bool
) -> Tensor:
    tensor = torch.empty(0, dtype=dtype)
    tensor.set_(_opened[number].untyped_storage(), offset, shape, stride)  # type: ignore[call-overload]
    return tensor.requires_grad_(grad)


def pack(value: Any) -> int:
    """Write a value into a new anonymous file and return its descriptor."""
    stream = io.BytesIO()
    packer = _Packer(stream)
    packer.dump(value)
    pickled = stream.getvalue()
    start = _round_up(_HEADER + len(pickled))
    offsets, end = [], start
    for buffer in packer.buffers:
        offsets.append(end)
        end = _round_up(end + buffer.numel())
    table = pickle.dumps([(offset, buffer.numel()) for offset, buffer in zip(offsets, packer.buffers, strict=True)])
    fd = anonymous_file(end + len(table))
    memory = map_file(fd, shared=True)
    memory[:_HEADER] = len(pickled).to_bytes(8, "little") + end.to_bytes(8, "little")
    memory[_HEADER : _HEADER + len(pickled)] = pickled
    memory[end : end + len(table)] = table
    for offset, buffer in zip(offsets, packer.buffers, strict=True):
        if buffer.numel():
            torch.frombuffer(memory, dtype=torch.uint8, count=buffer.numel(), offset=offset).copy_(buffer)
    return fd


def unpack(fd: int) -> Any:
    """The value of a parcel; its tensors are private to this process."""
    memory = map_file(fd, shared=False)
    with contextlib.suppress(OSError):  # older kernels: pages then come one by one, when first read
        memory.madvise(_POPULATE_READ)
    length = int.from_bytes(memory[:8], "little")
    end = int.from_bytes(memory[8:16], "little")
    table: list[tuple[int, int]] = pickle.loads(memory[end : os.fstat(fd).st_size])  # noqa: S301 (our own process wrote it)
    _opened[:] = [
        torch.frombuffer(memory, dtype=torch.uint8, count=size, offset=offset)
        if size
        else torch.empty(0, dtype=torch.uint8)
        for offset, size in table
    ]
    try:
        return pickle.loads(memory[_HEADER : _HEADER + length])  # noqa: S301 (our own process wrote it)
    finally:
        _opened.clear()


def by_value_copy(value: Any) -> Any:
    """A copy that shares nothing with the original, closures and their variables included."""
    fd = pack(value)
    try:
        return unpack(fd)
    finally:
        os.close(fd)


def by_value(module: ModuleType) -> None:
    """Let everything defined in `module` travel whole: for task files other processes cannot import."""
    sys.modules.setdefault(module.__name__, module)
    cloudpickle.register_pickle_by_value(module)


def _round_up(size: int) -> int:
    return -(-size // ALIGN) * ALIGN
