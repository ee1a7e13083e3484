"""Checkpoints in the background: copied while training stands still, written by a thread while it goes on."""

from __future__ import annotations

import errno
import itertools
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...data import nest
from .checkpoint import TENSOR_FILES, Checkpoint, published, step_of
from .write import write

KEEP = 3


class Writer:
    """Writes checkpoints from a thread of its own, one at a time, and keeps the last few.

    `own` are the steps of checkpoints this fit continues from; others belong to earlier fits and go when
    the first of this one is published.
    """

    def __init__(self, folder: Path, failed: Callable[[int, str], None], own: list[int], keep: int = KEEP):
        self.folder, self.keep = folder, keep
        self._failed = failed
        self._own = list(own)
        self._thread: threading.Thread | None = None
        self._buffers: dict[tuple[str, int], Tensor] = {}

    def write(self, checkpoint: Checkpoint) -> None:
        """Copy what may change and hand it to the thread; waits for the checkpoint before, if it is not done yet."""
        self.wait()
        copied = replace(checkpoint, **{part: self._copy(part, getattr(checkpoint, part)) for part in TENSOR_FILES})
        self._thread = threading.Thread(target=self._write, args=(copied,), name="manyhands-checkpoint", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _copy(self, part: str, value: Any) -> Any:
        """The nest with every tensor copied, into the memory of the last snapshot where that fits."""
        number = itertools.count()

        def copied(tensor: Tensor) -> Tensor:
            place = part, next(number)
            buffer = self._buffers.get(place)
            if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
                buffer = self._buffers[place] = torch.empty(tensor.shape, dtype=tensor.dtype)
            return buffer.copy_(tensor.detach())

        return nest.each(value, copied)

    def _write(self, checkpoint: Checkpoint) -> None:
        try:
            write(self.folder, checkpoint)
        except Exception as problem:  # training goes on; the caller is told
            self._failed(checkpoint.step, _why(problem, self.folder))
            return
        self._own = [step for step in self._own if step != checkpoint.step] + [checkpoint.step]
        self._own = sorted(self._own)[-self.keep :]
        for path in published(self.folder):
            if step_of(path) not in self._own:
                shutil.rmtree(path, ignore_errors=True)


def not_written(step: int, reason: str, rank: int | None) -> dict[str, Any]:
    """What the record says of a checkpoint that failed."""
    text = (
        f"the checkpoint after step {step} was not written: {reason}; training continues, and earlier ones are intact"
    )
    return {"kind": "checkpoint", "rank": rank, "step": step, "phase": "checkpoint", "message": text}


def _why(problem: Exception, folder: Path) -> str:
    if isinstance(problem, OSError) and problem.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        detail = f" ({problem.strerror})" if problem.filename is None else ""
        return f"the disk of {folder} is full{detail}; free some space there"
    if isinstance(problem, OSError):
        return f"{folder} cannot be written ({problem.strerror})"
    return str(problem)
