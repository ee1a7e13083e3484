"""Anything a user can write, by value, from one process to others.

cloudpickle carries lambdas, closures and classes of `__main__` or a notebook. The bytes of tensors and arrays
do not go through the pickle stream: they lie behind it in an anonymous file, which every receiver maps privately
(copy on write). A thousand ranks that only read the data share one copy of it, and a rank that writes
changes its own copy alone.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import sys
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch import Tensor, nn

from ...data.process_state import alone
from ...model.torch_internals import PARAMETER_HOOKS
from ..shared_memory import ALIGN, anonymous_file, map_file

_POPULATE_READ = 22  # madvise: map all pages now, without copying them
_HEADER = 16  # two 64-bit numbers: length of the stream, where the buffers begin
SMALLEST_ASIDE = 1024  # bytes; what is smaller travels in the pickle stream


class _Packer(cloudpickle.Pickler):  # type: ignore[misc]
    """Lays the bytes of plain CPU tensors and of arrays aside; everything else is cloudpickle's business."""

    def __init__(self, stream: io.BytesIO, aside: list[memoryview]):
        super().__init__(stream, protocol=5, buffer_callback=partial(_lay_aside, aside))
        self._storages: dict[tuple[int, int], _Storage] = {}

    def reducer_override(self, value: Any) -> Any:
        if type(value) is Tensor and _is_plain(value):
            storage = value.untyped_storage()
            key = (storage.data_ptr(), storage.nbytes())
            if key not in self._storages:
                self._storages[key] = _Storage(storage)
            return _tensor, (
                self._storages[key],
                value.dtype,
                value.storage_offset(),
                tuple(value.shape),
                value.stride(),
                value.requires_grad,
            )
        if isinstance(value, nn.Parameter) and (hooks := hooks_on(value)):  # torch leaves them behind
            made, arguments = value.__reduce_ex__(5)[:2]
            return made, arguments, hooks, None, None, _hook_on
        if _is_odd_module(value):
            return import_module, (value.__name__,)
        return super().reducer_override(value)


def _is_odd_module(value: Any) -> bool:
    """Whether this is a module of a type of its own, as torch.classes and torch.ops are: those have no pickle.

    cloudpickle sends them along with any function that uses torch and has an attribute of that name, as `self.classes`.
    """
    return isinstance(value, ModuleType) and type(value) is not ModuleType and sys.modules.get(value.__name__) is value


class _Storage:
    """The bytes that tensors are views of: pickled once, so that views of one storage stay views of one storage."""

    def __init__(self, storage: torch.UntypedStorage):
        self.bytes: Any = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()  # type: ignore[call-overload]

    def __reduce__(self) -> Any:
        return _storage, (pickle.PickleBuffer(self.bytes),)


def hooks_on(parameter: nn.Parameter) -> dict[str, list[Any]]:
    """What is called with a parameter's gradient, by the method that registers it."""
    found = PARAMETER_HOOKS.found(parameter) if PARAMETER_HOOKS.found else {}
    return {register: list(hooks.values()) for register, hooks in found.items() if hooks}


def _hook_on(parameter: nn.Parameter, hooks: dict[str, list[Any]]) -> None:
    for register, functions in hooks.items():
        for function in functions:
            getattr(parameter, register)(function)


def _lay_aside(aside: list[memoryview], buffer: pickle.PickleBuffer) -> bool:
    """Whether bytes stay in the pickle stream; else they are noted here."""
    raw = buffer.raw()
    if raw.nbytes < SMALLEST_ASIDE:
        return True
    aside.append(raw)
    return False


def _is_plain(tensor: Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and tensor.is_leaf
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
        and tensor.untyped_storage().nbytes() >= SMALLEST_ASIDE
    )


def _storage(content: memoryview) -> torch.UntypedStorage:
    return torch.frombuffer(content, dtype=torch.uint8).untyped_storage()


def _tensor(
    storage: torch.UntypedStorage,
    dtype: torch.dtype,
    offset: int,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    grad: bool,
) -> Tensor:
    tensor = torch.empty(0, dtype=dtype)
    tensor.set_(storage, offset, shape, stride)  # type: ignore[call-overload]
    return tensor.requires_grad_(grad)


class CannotTravel(TypeError):
    """A value holds something that cannot be sent to another process."""


def pack(value: Any) -> int:
    """Write a value into a new anonymous file and return its descriptor."""
    stream, buffers = io.BytesIO(), list[memoryview]()
    try:
        with alone():
            _Packer(stream, buffers).dump(value)
    except (TypeError, pickle.PicklingError, AttributeError, NotImplementedError) as problem:
        raise CannotTravel(str(problem)) from problem
    pickled = stream.getvalue()
    end = _round_up(_HEADER + len(pickled))
    spans = []
    for buffer in buffers:
        spans.append((end, buffer.nbytes))
        end = _round_up(end + buffer.nbytes)
    table = pickle.dumps(spans)
    fd = anonymous_file(end + len(table))
    memory = map_file(fd, shared=True)
    memory[:_HEADER] = len(pickled).to_bytes(8, "little") + end.to_bytes(8, "little")
    memory[_HEADER : _HEADER + len(pickled)] = pickled
    memory[end : end + len(table)] = table
    for (offset, size), buffer in zip(spans, buffers, strict=True):
        target = np.frombuffer(memory, dtype=np.uint8, count=size, offset=offset)
        np.copyto(target, np.frombuffer(buffer, dtype=np.uint8))  # lets other threads run meanwhile
    return fd


def refuses_to_travel(value: Any) -> Exception | None:
    """Why a value cannot be packed, found out without copying the bytes of its tensors."""
    try:
        with alone():
            _Packer(io.BytesIO(), []).dump(value)
    except Exception as problem:
        return problem
    return None


def unpack(fd: int) -> Any:
    """The value in such a file; its tensors and arrays are private to this process.

    Everything that opening needs is passed to the one call: threads may unpack at the same time.
    """
    memory = map_file(fd, shared=False)
    with contextlib.suppress(OSError):  # older kernels: pages then come one by one, when first read
        memory.madvise(_POPULATE_READ)
    length = int.from_bytes(memory[:8], "little")
    end = int.from_bytes(memory[8:16], "little")
    table: list[tuple[int, int]] = pickle.loads(memory[end : os.fstat(fd).st_size])  # noqa: S301 (our own process wrote it)
    content = memoryview(memory)
    buffers = [content[offset : offset + size] for offset, size in table]
    with alone():
        return pickle.loads(content[_HEADER : _HEADER + length], buffers=buffers)  # noqa: S301 (our own process wrote it)


def by_value_copy(value: Any) -> Any:
    """A copy that shares nothing with the original, closures and their variables included."""
    fd = pack(value)
    try:
        return unpack(fd)
    finally:
        os.close(fd)


def _round_up(size: int) -> int:
    return -(-size // ALIGN) * ALIGN
