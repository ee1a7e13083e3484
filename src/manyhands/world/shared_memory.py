"""Memory that several processes see: anonymous files (memfd) that vanish with the last process that holds them.

Nothing here has a name in a file system, so nothing can be left behind, however the processes end.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

ALIGN = 64  # one cache line: two tensors never share one


def anonymous_file(size: int, name: str = "manyhands") -> int:
    """A file descriptor of `size` zero bytes that has no name in any file system."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create(name, os.MFD_CLOEXEC)
    else:  # macOS: a temporary file, unlinked at once
        fd, path = tempfile.mkstemp()
        os.unlink(path)
    os.ftruncate(fd, size)
    return fd


def map_file(fd: int, *, shared: bool) -> mmap.mmap:
    """The whole file as memory; private pages are copied when first written, so writes stay with the writer."""
    size = os.fstat(fd).st_size
    return mmap.mmap(fd, size, flags=mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE)


@dataclass(frozen=True)
class Slot:
    """Where one tensor lies in a shared file, and in which order its numbers do."""

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


def layout(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Slot], int]:
    """A place for every tensor, each on cache lines of its own, and the size of it all."""
    slots: dict[str, Slot] = {}
    offset = 0
    for name, tensor in tensors.items():
        strides = torch.empty_like(tensor, device="meta").stride()  # the tensor's own, where it has no gaps
        slots[name] = Slot(offset, tuple(tensor.shape), strides, tensor.dtype)
        offset += -(-tensor.numel() * tensor.element_size() // ALIGN) * ALIGN
    return slots, offset


def share_tensors(tensors: Mapping[str, Tensor]) -> tuple[int, dict[str, Slot]]:
    """Copy tensors into a new shared file; the descriptor and the layout let others attach."""
    slots, size = layout(tensors)
    fd = anonymous_file(max(size, 1))  # nothing cannot be mapped
    views = attach_tensors(fd, slots)
    for name, tensor in tensors.items():
        views[name].copy_(tensor)
    return fd, slots


def attach_tensors(fd: int, slots: Mapping[str, Slot]) -> dict[str, Tensor]:
    """The tensors of a shared file: every process that attaches sees and writes the same bytes."""
    memory = map_file(fd, shared=True)
    return {name: _view(memory, slot) for name, slot in slots.items()}


def _view(memory: mmap.mmap, slot: Slot) -> Tensor:
    count = 1
    for extent in slot.shape:
        count *= extent
    if count == 0:
        return torch.empty(slot.shape, dtype=slot.dtype)
    numbers = torch.frombuffer(memory, dtype=slot.dtype, count=count, offset=slot.offset)
    return numbers.as_strided(slot.shape, slot.strides)


def open_of_process(pid: int, fd: int, flags: int = 0) -> int:
    """The same anonymous file as process `pid` of this host holds as `fd` (ranks that have no common parent)."""
    return os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC | flags)


def close_quietly(*fds: Any) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
